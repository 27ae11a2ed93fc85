"""Programs that create contexts in every way."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from tests.interposer.cuda_client import (
    MIB,
    OUT_OF_MEMORY,
    QUERIES,
    SUCCESS,
    Cuda,
    Location,
    Properties,
    in_threads,
    on_device,
)
from tests.interposer.programs.launching import PTR, kernel, launch, say, two_long_kernels

QUERIES.update(
    {
        "cuCtxCreate": ("cuCtxCreate", 2000, 0),
        "cuCtxDestroy": ("cuCtxDestroy", 2000, 0),
        "cuCtxCreate_v3": ("cuCtxCreate", 11040, 0),
        "cuCtxCreate_v4": ("cuCtxCreate", 12050, 0),
        "cuGLCtxCreate": ("cuGLCtxCreate", 2000, 0),
        "cuGLCtxCreate_v2": ("cuGLCtxCreate", 3020, 0),
        "cuVDPAUCtxCreate": ("cuVDPAUCtxCreate", 3010, 0),
        "cuVDPAUCtxCreate_v2": ("cuVDPAUCtxCreate", 3020, 0),
        "cuGreenCtxCreate": ("cuGreenCtxCreate", 12040, 0),
        "cuCtxFromGreenCtx": ("cuCtxFromGreenCtx", 12040, 0),
    }
)


def green(c: Cuda) -> PTR:
    return c.made("cuCtxFromGreenCtx", c.made("cuGreenCtxCreate", None, 0, 1))


# Creates a context on device 0, and the name of the function that ends it.
WAYS: dict[str, tuple[Callable[[Cuda], PTR], str]] = {
    "plain": (lambda c: c.made("cuCtxCreate_v2", 0, 0), "cuCtxDestroy_v2"),
    "plain, before 3.2": (lambda c: c.made("cuCtxCreate", 0, 0), "cuCtxDestroy"),
    "with affinity": (lambda c: c.made("cuCtxCreate_v3", None, 0, 0, 0), "cuCtxDestroy_v2"),
    "with parameters": (lambda c: c.made("cuCtxCreate_v4", None, 0, 0), "cuCtxDestroy_v2"),
    "OpenGL": (lambda c: c.made("cuGLCtxCreate_v2", 0, 0), "cuCtxDestroy_v2"),
    "OpenGL, before 3.2": (lambda c: c.made("cuGLCtxCreate", 0, 0), "cuCtxDestroy_v2"),
    "VDPAU": (lambda c: c.made("cuVDPAUCtxCreate_v2", 0, 0, 1, None), "cuCtxDestroy_v2"),
    "VDPAU, before 3.2": (lambda c: c.made("cuVDPAUCtxCreate", 0, 0, 1, None), "cuCtxDestroy_v2"),
    "green": (green, ""),
}


def in_a_context(way: str, proc: bool = False) -> tuple[Cuda, PTR]:
    c = Cuda(proc=proc, device=None)
    context = WAYS[way][0](c)
    c.check("cuCtxSetCurrent", context)
    return c, context


def fills(way: str, proc: bool, limit: int) -> None:
    c, context = in_a_context(way, proc)
    assert c.allocate(limit + 1)[0] == OUT_OF_MEMORY
    assert c.allocate(limit)[0] == SUCCESS
    assert c.allocate(1)[0] == OUT_OF_MEMORY
    if end := WAYS[way][1]:
        c.check(end, context)


def launches(way: str) -> None:
    c, _ = in_a_context(way)
    say(launch(c, kernel(c, 1)))


def handles_without_a_context(limit: int) -> None:
    c = Cuda(device=None)

    def create(size: int, properties: Properties) -> tuple[int, int]:
        made = ctypes.c_uint64()
        return c.call("cuMemCreate", ctypes.byref(made), size, ctypes.byref(properties), 0), made.value

    def both() -> None:
        results.append(create(limit + 2 * MIB, on_device(0)))
        results.append(create(limit, on_device(0)))

    results: list[tuple[int, int]] = []
    both()
    assert [result for result, _ in results] == [OUT_OF_MEMORY, SUCCESS], results
    assert c.call("cuMemRelease", results[1][1]) == SUCCESS
    results.clear()
    thread = threading.Thread(target=both)
    thread.start()
    thread.join()
    assert [result for result, _ in results] == [OUT_OF_MEMORY, SUCCESS], results
    for kind in (2, 3, 4):  # host, a NUMA node, the thread's NUMA node
        result, _ = create(2 * MIB, Properties(type=1, location=Location(type=kind, id=0)))
        assert result != OUT_OF_MEMORY, "host memory is not charged"
    assert create(2 * MIB, on_device(0))[0] == OUT_OF_MEMORY
    assert create(2 * MIB, on_device(77))[0] not in (SUCCESS, OUT_OF_MEMORY)
    assert create(2 * MIB, on_device(-1))[0] not in (SUCCESS, OUT_OF_MEMORY)


class Heap(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in "abcdefghij")


def retains_and_releases() -> None:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Heap
    c = Cuda()
    function = kernel(c, 1)

    def turns(count: int) -> int:
        for _ in range(count):
            c.made("cuDevicePrimaryCtxRetain", 0)
            launch(c, function)
            c.check("cuDevicePrimaryCtxRelease_v2", 0)
        c.check("cuCtxSynchronize")
        return int(libc.mallinfo2().h)

    before = turns(1000)
    assert turns(10000) - before < 100000


def threads_release_the_last_at_once(limit: int) -> None:
    """The last release frees the context's memory, in any order of the threads."""
    c = Cuda(device=None)
    context, together = ctypes.c_void_p(), threading.Barrier(2)

    def retain() -> None:
        c.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        c.check("cuCtxSetCurrent", context)

    def rounds() -> None:
        for _ in range(5):
            retain()
            assert c.allocate(MIB)[0] == SUCCESS, c.info()
            together.wait()
            c.check("cuDevicePrimaryCtxRelease_v2", 0)
            together.wait()

    in_threads(rounds, 2)
    retain()
    assert c.allocate(limit)[0] == SUCCESS, c.info()


def releases_while_kernels_run() -> None:
    c = Cuda()
    c.made("cuDevicePrimaryCtxRetain", 0)
    two_long_kernels(c, after=lambda: c.check("cuDevicePrimaryCtxRelease_v2", 0))


def ends_a_context(end: str) -> None:
    c = Cuda()
    context = c.made("cuGreenCtxCreate", None, 0, 1) if end == "cuGreenCtxDestroy" else c.made("cuCtxCreate_v2", 0, 0)
    c.check("cuCtxSetCurrent", context)
    assert launch(c, kernel(c, 1000)) == 0
    c.check("cuCtxSynchronize")
    c.use(0)
    c.check(end, context)
    assert launch(c, kernel(c, 1000)) == 0
    say("ended")
    input()


def exits_while_a_kernel_runs() -> None:
    c = Cuda()
    assert launch(c, kernel(c, 100000)) == 0
    say("running")
    input()
