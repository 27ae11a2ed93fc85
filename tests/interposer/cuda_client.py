"""A client of CUDA's driver API in Python, which the tests run in separate processes.

`Cuda()` finds functions through dlsym, `Cuda(proc=True)` through cuGetProcAddress. Real programs use both.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

SUCCESS, OUT_OF_MEMORY, NOT_PERMITTED, NOT_SUPPORTED, SYSTEM_NOT_READY = 0, 2, 800, 801, 802
PER_THREAD = 2
MIB = 1 << 20

# The name, version and flags with which cuGetProcAddress returns the function of an exported name.
QUERIES = {
    "cuMemAlloc_v2": ("cuMemAlloc", 3020, 0),
    "cuMemAlloc": ("cuMemAlloc", 2000, 0),
    "cuMemFree_v2": ("cuMemFree", 3020, 0),
    "cuMemFree": ("cuMemFree", 2000, 0),
    "cuMemAllocPitch_v2": ("cuMemAllocPitch", 3020, 0),
    "cuMemGetInfo_v2": ("cuMemGetInfo", 3020, 0),
    "cuDeviceTotalMem_v2": ("cuDeviceTotalMem", 3020, 0),
    "cuMemAllocAsync_ptsz": ("cuMemAllocAsync", 11020, PER_THREAD),
    "cuMemFreeAsync_ptsz": ("cuMemFreeAsync", 11020, PER_THREAD),
    "cuMemAllocFromPoolAsync_ptsz": ("cuMemAllocFromPoolAsync", 11020, PER_THREAD),
    "cuCtxCreate_v2": ("cuCtxCreate", 3020, 0),
    "cuCtxDestroy_v2": ("cuCtxDestroy", 4000, 0),
    "cuDevicePrimaryCtxReset_v2": ("cuDevicePrimaryCtxReset", 11000, 0),
    "cuArrayCreate_v2": ("cuArrayCreate", 3020, 0),
}


class Location(ctypes.Structure):
    """The C structure CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """The C structure CUmemAllocationProp, which is also the beginning of CUmemPoolProps."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("rest", ctypes.c_ubyte * 80),
    )


class ArrayDescriptor(ctypes.Structure):
    """The C structure CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class Array3DDescriptor(ctypes.Structure):
    """The C structure CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class OldArrayDescriptor(ctypes.Structure):
    """The C structure CUDA_ARRAY_DESCRIPTOR from before CUDA 3.2."""

    _fields_ = (
        ("width", ctypes.c_uint),
        ("height", ctypes.c_uint),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class ArrayMapping(ctypes.Structure):
    """The C structure CUarrayMapInfo."""

    _fields_ = (
        ("resource_type", ctypes.c_int),
        ("resource", ctypes.c_void_p),
        ("subresource_type", ctypes.c_int),
        ("subresource", ctypes.c_uint64 * 4),
        ("operation", ctypes.c_int),
        ("handle_type", ctypes.c_int),
        ("handle", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("devices", ctypes.c_uint),
        ("rest", ctypes.c_uint * 3),
    )


class AllocationNode(ctypes.Structure):
    """The C structure CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("rest", ctypes.c_ubyte * 72),
        ("access", ctypes.c_void_p),
        ("access_count", ctypes.c_size_t),
        ("size_bytes", ctypes.c_size_t),
        ("pointer", ctypes.c_uint64),
    )


class NodeParameters(ctypes.Structure):
    """The C structure CUgraphNodeParams for an allocation node."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
        ("allocation", AllocationNode),
        ("rest", ctypes.c_ubyte * 120),
    )


class InstantiateParameters(ctypes.Structure):
    """The C structure CUDA_GRAPH_INSTANTIATE_PARAMS."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("node", ctypes.c_void_p),
        ("result", ctypes.c_int),
    )


def on_device(device: int, handles: int = 0) -> Properties:
    """Return properties of pinned memory on a device, which can be shared by these types of handles."""
    return Properties(type=1, handles=handles, location=Location(type=1, id=device))


def allocation(size_bytes: int, device: int = 0) -> AllocationNode:
    """Return the parameters of an allocation node."""
    return AllocationNode(type=1, location=Location(type=1, id=device), size_bytes=size_bytes)


def in_threads(work: Callable[[], object], count: int) -> None:
    """Run the function in this many threads and wait for all of them."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Cuda:
    """The initialized driver, with the primary context of `device` current; with None there is no context."""

    def __init__(self, *, proc: bool = False, device: int | None = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._proc = proc
        self.check("cuInit", 0)
        if device is not None:
            self.use(device)

    def address(self, symbol: str) -> int | None:
        """Return a function's address, or None if the driver lacks it."""
        if not self._proc:
            try:
                return ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value
            except AttributeError:
                return None
        name, version, flags = QUERIES.get(symbol, (symbol, 12000, 0))
        return self.proc_address(name, version, flags)

    def proc_address(self, name: str, version: int, flags: int = 0) -> int | None:
        """Return the address that cuGetProcAddress_v2 returns."""
        pointer, status = ctypes.c_void_p(), ctypes.c_int()
        ask = self._library.cuGetProcAddress_v2
        ask.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
        result = ask(name.encode(), ctypes.byref(pointer), version, flags, ctypes.byref(status))
        assert (result == SUCCESS) == bool(pointer)
        return pointer.value

    def call(self, symbol: str, *arguments: Any) -> int:
        """Call a function by its exported name. Integers are passed as 64 bits."""
        address = self.address(symbol)
        assert address is not None, f"no {symbol}"
        wide = [ctypes.c_uint64(argument) if isinstance(argument, int) else argument for argument in arguments]
        return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)(*wide))

    def check(self, symbol: str, *arguments: Any) -> None:
        """Call a function and expect success."""
        result = self.call(symbol, *arguments)
        if result != SUCCESS:
            raise SystemExit(f"{symbol}: {result}")

    def use(self, device: int) -> None:
        """Make a device's primary context current."""
        context = ctypes.c_void_p()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.check("cuCtxSetCurrent", context)

    def allocate(self, size_bytes: int, symbol: str = "cuMemAlloc_v2", *more: Any) -> tuple[int, int]:
        """Return the result and the pointer."""
        pointer = ctypes.c_uint64()
        result = self.call(symbol, ctypes.byref(pointer), size_bytes, *more)
        return result, pointer.value

    def free(self, pointer: int) -> int:
        """Call cuMemFree and return its result."""
        return self.call("cuMemFree_v2", pointer)

    def info(self) -> tuple[int, int]:
        """Return free and total bytes."""
        free_bytes, total_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo_v2", ctypes.byref(free_bytes), ctypes.byref(total_bytes))
        return free_bytes.value, total_bytes.value

    def default_pool(self, device: int = 0) -> ctypes.c_void_p:
        """Return the device's default memory pool."""
        pool = ctypes.c_void_p()
        self.check("cuDeviceGetDefaultMemPool", ctypes.byref(pool), device)
        return pool

    def made(self, symbol: str, *arguments: Any) -> ctypes.c_void_p:
        """Return the handle that a function creates and returns through its first parameter."""
        handle = ctypes.c_void_p()
        self.check(symbol, ctypes.byref(handle), *arguments)
        return handle

    def kernel(self, name: str) -> ctypes.c_void_p:
        """Return a kernel of a simulated GPU, whose name says how long it runs."""
        return self.made("cuModuleGetFunction", self.made("cuModuleLoadData", b"image"), name.encode())

    def launch(self, kernel: ctypes.c_void_p, stream: Any = 0) -> None:
        """Launch the kernel."""
        self.check("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
