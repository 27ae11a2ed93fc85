"""Programs that create contexts, whose memory is charged."""

from __future__ import annotations

import ctypes
import threading

from tests.interposer.cuda_client import MIB, NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS, Cuda, in_threads

LIMIT, CONTEXT = 64 * MIB, 10 * MIB


def own(c: Cuda) -> tuple[int, ctypes.c_void_p]:
    context = ctypes.c_void_p()
    return c.call("cuCtxCreate_v2", ctypes.byref(context), 0, 0), context


def last_release(c: Cuda) -> None:
    c.check("cuDevicePrimaryCtxRelease_v2", 0)


def reset(c: Cuda) -> None:
    c.check("cuDevicePrimaryCtxReset_v2", 0)


def several_releases(c: Cuda) -> None:
    c.use(0)
    c.use(0)
    c.check("cuDevicePrimaryCtxRelease_v2", 0)
    assert c.info() == (LIMIT - CONTEXT - (1 << 20), LIMIT)
    c.check("cuDevicePrimaryCtxRelease_v2", 0)
    c.check("cuDevicePrimaryCtxRelease_v2", 0)


# After each of these no context is left.
ENDS = {"the last release": last_release, "a reset": reset, "all of several releases": several_releases}


def primary(end: str) -> None:
    c = Cuda()
    assert c.info() == (LIMIT - CONTEXT, LIMIT)
    assert c.allocate(LIMIT - CONTEXT + 1)[0] == OUT_OF_MEMORY
    assert c.allocate(1 << 20)[0] == SUCCESS
    ENDS[end](c)
    c.use(0)
    assert c.info() == (LIMIT - CONTEXT, LIMIT)
    print("charged once")


def contexts_of_its_own() -> None:
    c = Cuda()
    made = [own(c) for _ in range(5)]
    assert [result for result, _ in made] == [SUCCESS] * 5
    assert c.info() == (LIMIT - 6 * CONTEXT, LIMIT)
    assert own(c)[0] == OUT_OF_MEMORY
    for _, context in made:
        c.check("cuCtxDestroy_v2", context)
    c.check("cuDevicePrimaryCtxReset_v2", 0)
    c.use(0)
    assert c.info() == (LIMIT - CONTEXT, LIMIT)


def primary_by_threads() -> None:
    c, begin = Cuda(device=None), threading.Barrier(8)
    results: list[int] = []

    def make() -> None:
        context = ctypes.c_void_p()
        begin.wait(10)
        results.append(c.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0))

    in_threads(make, 8)
    print(results)


def fills_what_is_left() -> None:
    c = Cuda()
    assert c.info() == (LIMIT - 4 * MIB, LIMIT)
    assert c.allocate(LIMIT - 4 * MIB + 1)[0] == OUT_OF_MEMORY
    result, pointer = c.allocate(LIMIT - 4 * MIB)
    assert result == SUCCESS
    assert c.free(pointer) == SUCCESS


def nothing_left() -> None:
    c = Cuda()
    assert c.info() == (0, LIMIT)
    assert c.allocate(1)[0] == OUT_OF_MEMORY


def on_another_gpu() -> None:
    c = Cuda(device=1)
    assert c.allocate(1)[0] == NOT_PERMITTED
