"""Programs that select GPUs by number, UUID and MIG device."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda


def looks_and_fills() -> None:
    """Print each device's size, and check that its memory ends there."""
    c = ctypes.CDLL("libcuda.so.1")
    print(c.cuInit(0), end=":")
    count, total = ctypes.c_int(), ctypes.c_size_t()
    if c.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for device in range(count.value):
            cuda = Cuda(device=device)
            assert c.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
            assert cuda.info() == (total.value, total.value)
            assert cuda.allocate(total.value + 1)[0] == OUT_OF_MEMORY
            result, pointer = cuda.allocate(total.value)
            assert result == SUCCESS and cuda.info()[0] == 0 and cuda.free(pointer) == SUCCESS
            print(total.value // MIB, end=" ")
