"""Programs that take away a resource before they initialize CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, SYSTEM_NOT_READY, Cuda

EPERM, ALLOW, ERRNO = 1, 0x7FFF0000, 0x00050000
CLONE, CLONE3 = 56, 435


def fill(left: int) -> Callable[[], object]:
    """Leave this many descriptors, and return a function that closes the others again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    for _ in range(left):
        os.close(taken.pop())

    def give_back() -> None:
        for descriptor in taken:
            os.close(descriptor)

    return give_back


def squeeze() -> Callable[[], object]:
    """Leave no address space, and return a function that undoes it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 65536, resource.RLIM_INFINITY))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def starts_short_of(descriptors: int | None) -> None:
    """Initialize CUDA with this many descriptors, or, with None, without address space."""
    library = ctypes.CDLL("libcuda.so.1")
    undo = squeeze() if descriptors is None else fill(descriptors)
    results = [library.cuInit(0) for _ in range(3)]
    undo()
    assert results == [SYSTEM_NOT_READY] * 3, results
    c = Cuda()
    assert c.allocate(5 * MIB)[0] == SUCCESS
    c.launch(c.kernel("k_1us"))
    assert c.allocate(1)[0] == OUT_OF_MEMORY


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def starts_without_threads() -> None:
    library, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None, use_errno=True)
    steps = [(0x20, 0, 0, 0)]
    for number in (CLONE, CLONE3):
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, ERRNO | EPERM)]
    steps.append((0x06, 0, 0, ALLOW))
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Filter(len(steps), ctypes.addressof(packed))), 0, 0) == 0
    print([library.cuInit(0) for _ in range(3)])
