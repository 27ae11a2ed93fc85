"""Prints sizes, the result of a kernel, how much could be allocated, and the error after that."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

from cuda.bindings import driver, nvrtc

launches, piece_bytes = map(int, sys.argv[1:])


def call(function: Any, *arguments: Any) -> Any:
    result, *values = function(*arguments)
    assert int(result) == 0, (function.__name__, result)
    return values[0] if len(values) == 1 else values


call(driver.cuInit, 0)
device = call(driver.cuDeviceGet, 0)
call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
first = call(driver.cuMemGetInfo)
code = b'extern "C" __global__ void scale(float a, float *x) { x[threadIdx.x] *= a; }'
program = call(nvrtc.nvrtcCreateProgram, code, b"scale.cu", 0, [], [])
call(nvrtc.nvrtcCompileProgram, program, 1, [b"--gpu-architecture=sm_80"])
cubin = b" " * call(nvrtc.nvrtcGetCUBINSize, program)
call(nvrtc.nvrtcGetCUBIN, program, cubin)
assert cubin[1:4] == b"ELF"
library = call(driver.cuLibraryLoadData, cubin, [], [], 0, [], [], 0)
kernel = driver.CUfunction(int(call(driver.cuLibraryGetKernel, library, b"scale")))
stream, begin, end = call(driver.cuStreamCreate, 1), call(driver.cuEventCreate, 0), call(driver.cuEventCreate, 0)
numbers = (ctypes.c_float * 3)(0, 1, 2)
values = call(driver.cuMemAllocAsync, ctypes.sizeof(numbers), stream)
call(driver.cuMemcpyHtoDAsync, values, ctypes.addressof(numbers), ctypes.sizeof(numbers), stream)
call(driver.cuEventRecord, begin, stream)
for _ in range(launches):
    call(driver.cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, ((2.0, values), (ctypes.c_float, None)), 0)
call(driver.cuEventRecord, end, stream)
back = (ctypes.c_float * 3)()
call(driver.cuMemcpyDtoHAsync, ctypes.addressof(back), values, ctypes.sizeof(back), stream)
call(driver.cuMemFreeAsync, values, stream)
call(driver.cuStreamSynchronize, stream)
elapsed = call(driver.cuEventElapsedTime, begin, end)
held = 0
while (result := driver.cuMemAlloc(piece_bytes)[0]) == driver.CUresult.CUDA_SUCCESS:
    held += 1
print(json.dumps([first, list(back), elapsed, held, call(driver.cuMemGetInfo)[0], result.name]))
