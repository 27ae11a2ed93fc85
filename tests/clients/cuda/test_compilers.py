"""Compilers and bindings of CUDA for Python: they find a GPU, or a share of one, compile and launch, and meet its end.

The compilers and the bindings are real, from their packages; what they compile is launched and takes time, and is not executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import clients
from tests.clients.cuda import packages, share

pytestmark = pytest.mark.slow

GPU_BYTES = 40 * share.GIB
FRAMEWORKS = {"torch"}  # whose tests are in tests/frameworks
PIECE_BYTES = 256 << 20
LAUNCHES = 20
KERNEL_MS = 0.010  # of a simulated kernel whose name does not tell

# Each prints what a person would read: sizes, what came of a kernel, how much could be allocated, and the error after that.
NUMBA = f"""
import json, warnings
warnings.simplefilter("ignore")
import numpy
from numba import cuda
memory = lambda: list(cuda.current_context().get_memory_info())
@cuda.jit
def add_one(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += 1
first = memory()
values, stream = cuda.to_device(numpy.arange(1024, dtype=numpy.float32)), cuda.stream()
begin, end = cuda.event(), cuda.event()
add_one[4, 256, stream](values)
begin.record(stream)
for _ in range({LAUNCHES}):
    add_one[4, 256, stream](values)
end.record(stream)
stream.synchronize()
elapsed = cuda.event_elapsed_time(begin, end)
back = values.copy_to_host()[:3].tolist()
del values
cuda.current_context().deallocations.clear()
held, error = [], None
try:
    while True:
        held.append(cuda.device_array({PIECE_BYTES}, dtype=numpy.uint8))
except Exception as failed:
    error = str(failed)
print(json.dumps([first, back, elapsed, len(held), memory()[0], error]))
"""
NVRTC = f"""
import ctypes, json
from cuda.bindings import driver, nvrtc
def call(function, *arguments):
    result, *values = function(*arguments)
    assert int(result) == 0, (function.__name__, result)
    return values[0] if len(values) == 1 else values
call(driver.cuInit, 0)
device = call(driver.cuDeviceGet, 0)
call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
first = call(driver.cuMemGetInfo)
code = b'extern "C" __global__ void scale(float a, float *x) {{ x[threadIdx.x] *= a; }}'
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
for _ in range({LAUNCHES}):
    call(driver.cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, ((2.0, values), (ctypes.c_float, None)), 0)
call(driver.cuEventRecord, end, stream)
back = (ctypes.c_float * 3)()
call(driver.cuMemcpyDtoHAsync, ctypes.addressof(back), values, ctypes.sizeof(back), stream)
call(driver.cuMemFreeAsync, values, stream)
call(driver.cuStreamSynchronize, stream)
elapsed = call(driver.cuEventElapsedTime, begin, end)
held = 0
while (result := driver.cuMemAlloc({PIECE_BYTES})[0]) == driver.CUresult.CUDA_SUCCESS:
    held += 1
print(json.dumps([first, list(back), elapsed, held, call(driver.cuMemGetInfo)[0], result.name]))
"""
PROGRAMS = {"numba-cuda": NUMBA, "nvidia-cuda-nvrtc-cu12": NVRTC}  # as in clients.CUDA


@pytest.fixture(scope="session")
def python() -> Path:
    return packages.python(Path(__file__).with_name("compilers.lock"))


def check(output: str, total_bytes: int) -> None:
    answer: list[Any] = json.loads(output)
    memory, back, elapsed_ms, pieces, free_bytes, error = answer
    assert memory == [total_bytes, total_bytes]
    assert back == [0, 1, 2]
    assert elapsed_ms >= LAUNCHES * KERNEL_MS, "kernels were launched, and took their time"
    assert (pieces, free_bytes) == (total_bytes // PIECE_BYTES, 0), "all of it can be had, to the byte"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in error


def test_every_program_of_the_table_is_tried() -> None:
    assert {client.name for client in clients.CUDA} - FRAMEWORKS == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_alone_it_has_the_whole_gpu(python: Path, gpus: Path, program: str) -> None:
    check(share.run_alone(gpus, [python, "-c", PROGRAMS[program]]), GPU_BYTES)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_in_a_share_it_has_the_share(python: Path, shares: share.Shares, program: str) -> None:
    check(await shares.run(shares.add(), [python, "-c", PROGRAMS[program]]), share.SHARE_BYTES)
