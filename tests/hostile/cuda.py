"""The driver API for a Python program: one GPU, its memory, kernels of a known duration (simulated GPUs only)."""

from __future__ import annotations

import ctypes

OUT_OF_MEMORY = 2


class CudaError(Exception):
    """Raised for an error of the driver."""


class Gpu:
    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._do("cuInit", 0)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self._do("cuCtxSetCurrent", self._context)

    def _do(self, name: str, *arguments: object) -> None:
        result = getattr(self._driver, name)(*arguments)
        if result:
            raise CudaError(f"{name}: {result}")

    def kernel(self, microseconds: int) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(module), b"")
        self._do("cuModuleGetFunction", ctypes.byref(function), module, b"spin_%dus" % microseconds)
        return function

    def launch(self, kernel: ctypes.c_void_p, count: int = 1) -> None:
        for _ in range(count):
            self._do("cuLaunchKernel", kernel, *(1, 1, 1), *(1, 1, 1), 0, None, None, None)

    def wait(self) -> None:
        self._do("cuCtxSynchronize")

    def total_bytes(self) -> int:
        total = ctypes.c_size_t()
        self._do("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
        return total.value

    def take(self, step_bytes: int) -> bool:
        """Allocate so much; return whether that succeeded."""
        pointer = ctypes.c_uint64()
        result = self._driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(step_bytes))
        if result not in {0, OUT_OF_MEMORY}:
            raise CudaError(f"cuMemAlloc: {result}")
        return not result

    def fill(self) -> int:
        """Allocate all available memory, to the byte; return the number of bytes."""
        filled_bytes, step_bytes = 0, 1 << (self.total_bytes() - 1).bit_length()
        while step_bytes:
            if self.take(step_bytes):
                filled_bytes += step_bytes
            else:
                step_bytes //= 2
        return filled_bytes
