"""Programs that query the GPU's memory size."""

from __future__ import annotations

import ctypes

import pynvml

from tests.interposer.cuda_client import Cuda


def forms_of_32_bits() -> None:
    c = Cuda()
    free_bytes, total_bytes = ctypes.c_uint32(), ctypes.c_uint32()
    c.check("cuMemGetInfo", ctypes.byref(free_bytes), ctypes.byref(total_bytes))
    assert (free_bytes.value, total_bytes.value) == (2**32 - 1, 2**32 - 1)
    c.check("cuDeviceTotalMem", ctypes.byref(total_bytes), 0)
    assert total_bytes.value == 2**32 - 1


def both_forms_of_nvml() -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for version in (None, pynvml.nvmlMemory_v2):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
        print(memory.total, memory.free, memory.used)
    print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(1)).total)
