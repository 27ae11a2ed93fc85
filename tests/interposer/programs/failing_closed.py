"""Programs that initialize CUDA without an arbiter."""

from __future__ import annotations

import ctypes
import threading

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda, in_threads


def attempts() -> None:
    library = ctypes.CDLL("libcuda.so.1")
    print([library.cuInit(0) for _ in range(3)], library.cuMemAlloc_v2(None, 1), library.cuMemCreate(None, 1, None, 0))


def starts_twice() -> None:
    library = ctypes.CDLL("libcuda.so.1")
    print(library.cuInit(0), flush=True)
    input()
    print(library.cuInit(0), flush=True)


def starts_in_threads() -> None:
    library, together = ctypes.CDLL("libcuda.so.1"), threading.Barrier(32)
    results: list[int] = []

    def start() -> None:
        together.wait()
        results.append(library.cuInit(0))

    in_threads(start, 32)
    assert results == [SUCCESS] * 32
    c = Cuda()
    assert c.allocate(MIB)[0] == SUCCESS and c.allocate(1)[0] == OUT_OF_MEMORY
