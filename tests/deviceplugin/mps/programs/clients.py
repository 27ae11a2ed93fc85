"""Processes of shares with the isolation mps, on simulated GPUs."""

from __future__ import annotations

import ctypes
import os
import sys

from tests.interposer.cuda_client import Cuda
from tests.simgpu.programs import mps


def runs_a_kernel(name: str) -> None:
    """Set variables that would change the client's part of the GPU, and run a kernel as `mps.runs_a_kernel` does."""
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "100"
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"
    mps.runs_a_kernel(name)


def starts_or_not() -> None:
    """Print the results of cuInit, of a context, and of an allocation by a program that ignores them."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    print(
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
        cuda.cuLaunchKernel(*[None] * 11),
    )


def allocates(mib: int) -> None:
    """Allocate, print the result, and hold the memory until a line comes. Then print whether a kernel runs."""
    c = Cuda()
    pointer = ctypes.c_uint64()
    print(c.call("cuMemAlloc_v2", ctypes.byref(pointer), mib << 20), flush=True)
    sys.stdin.readline()
    c.launch(c.kernel("k_1ms"))
    c.check("cuCtxSynchronize")
    print("ran", flush=True)
