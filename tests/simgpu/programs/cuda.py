"""The simulated CUDA driver: all processes share a GPU's memory and time."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time

from tests.interposer.cuda_client import MIB, PER_THREAD, SUCCESS, Cuda, Location, on_device


def allocates(size_bytes: int) -> None:
    assert Cuda().allocate(size_bytes)[0] == SUCCESS


def takes_the_whole_again_and_again() -> None:
    c = Cuda()
    print("started", flush=True)
    while True:
        result, pointer = c.allocate(80 << 30)
        if result == SUCCESS:
            c.free(pointer)


def copies() -> None:
    c = Cuda()
    _, first = c.allocate(79 << 30)
    _, second = c.allocate(1 << 20)
    data = bytes(range(256)) * 16
    far = first + (78 << 30)
    c.check("cuMemcpyHtoD_v2", far, data, len(data))
    c.check("cuMemcpyDtoD_v2", second, far, len(data))
    back = ctypes.create_string_buffer(len(data))
    c.check("cuMemcpyDtoH_v2", back, second, len(data))
    assert back.raw == data
    assert c.free(first + 1) == 1


def maps_memory_twice() -> None:
    c = Cuda()
    handle, address = ctypes.c_uint64(), ctypes.c_uint64()
    c.check("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(0)), 0)
    c.check("cuMemAddressReserve", ctypes.byref(address), 4 * MIB, 0, 0, 0)
    for n in range(2):
        c.check("cuMemMap", address.value + n * 2 * MIB, 2 * MIB, 0, handle.value, 0)
    access = (ctypes.c_int * 3)(1, 0, 3)
    c.check("cuMemSetAccess", address.value, 4 * MIB, access, 1)
    c.check("cuMemcpyHtoD_v2", address.value, b"hello", 5)
    back = ctypes.create_string_buffer(5)
    c.check("cuMemcpyDtoH_v2", back, address.value + 2 * MIB, 5)
    assert back.raw == b"hello"
    c.check("cuMemRelease", handle.value)
    assert c.info()[0] == c.info()[1] - 2 * MIB
    c.check("cuMemUnmap", address.value, 4 * MIB)
    assert c.info()[0] == c.info()[1]
    c.check("cuMemAddressFree", address.value, 4 * MIB)


def pool_with_a_threshold() -> None:
    c = Cuda()
    pool = c.default_pool()

    def used() -> int:
        return (c.info()[1] - c.info()[0]) // MIB

    def wait() -> None:
        return c.check("cuCtxSynchronize")

    def attribute(which: int) -> int:
        value = ctypes.c_uint64()
        c.check("cuMemPoolGetAttribute", pool, which, ctypes.byref(value))
        return value.value // MIB

    c.check("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(40 * MIB)))
    _, pointer = c.allocate(100 * MIB, "cuMemAllocAsync", 0)
    assert used() == 128
    assert (attribute(5), attribute(7)) == (128, 100)
    c.check("cuMemFreeAsync", pointer, 0)
    assert used() == 128
    wait()
    assert used() == 64
    _, pointer = c.allocate(4 * MIB, "cuMemAllocAsync", 0)
    c.check("cuMemPoolTrimTo", pool, 33 * MIB)
    assert used() == 64
    c.check("cuMemPoolTrimTo", pool, 0)
    assert used() == 32
    c.check("cuMemFreeAsync", pointer, 0)
    c.check("cuMemPoolTrimTo", pool, 0)
    assert used() == 0
    assert (attribute(6), attribute(8)) == (128, 100)


def frees_in_a_stream() -> None:
    c = Cuda()

    def used() -> int:
        return (c.info()[1] - c.info()[0]) // MIB

    kernel, stream, other = c.kernel("spin_200ms"), c.made("cuStreamCreate", 0), c.made("cuStreamCreate", 0)
    _, pointer = c.allocate(32 * MIB, "cuMemAllocAsync", stream)
    c.launch(kernel, stream)
    c.check("cuMemFreeAsync", pointer, stream)
    _, pointer = c.allocate(32 * MIB, "cuMemAllocAsync", stream)
    assert used() == 32
    c.check("cuMemFreeAsync", pointer, stream)
    _, second = c.allocate(16 * MIB, "cuMemAllocAsync", other)
    assert used() == 64
    c.check("cuMemFreeAsync", second, other)
    c.check("cuStreamSynchronize", stream)
    assert used() == 0


def shares_memory() -> None:
    c = Cuda()
    handle, other, address, word = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint32(7)
    c.check("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(0)), 0)
    assert c.call("cuMemExportToShareableHandle", ctypes.byref(word), handle.value, 1, 0) != SUCCESS, (
        "created without a handle type"
    )
    c.check("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(0, 1)), 0)
    descriptor = ctypes.c_int()
    c.check("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle.value, 1, 0)
    c.check("cuMemImportFromShareableHandle", ctypes.byref(other), descriptor.value, 1)
    assert c.call("cuMemImportFromShareableHandle", ctypes.byref(other), 0, 1) != SUCCESS
    assert c.info()[1] - c.info()[0] == 4 * MIB
    c.check("cuMemAddressReserve", ctypes.byref(address), 4 * MIB, 0, 0, 0)
    for at, allocation in ((0, handle), (2 * MIB, other)):
        c.check("cuMemMap", address.value + at, 2 * MIB, 0, allocation.value, 0)

    class Access(ctypes.Structure):
        _fields_ = (("location", Location), ("flags", ctypes.c_int))

    c.check("cuMemSetAccess", address.value, 4 * MIB, ctypes.byref(Access(Location(1, 0), 3)), 1)
    c.check("cuMemcpyHtoD_v2", address.value, ctypes.byref(ctypes.c_uint32(42)), 4)
    c.check("cuMemcpyDtoH_v2", ctypes.byref(word), address.value + 2 * MIB, 4)
    assert word.value == 42


def timeline() -> None:
    c = Cuda()
    module, function, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    start, end, elapsed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
    c.check("cuModuleLoadData", ctypes.byref(module), b"")
    assert c.call("cuModuleGetFunction", ctypes.byref(function), module, b"") == 500
    c.check("cuModuleGetFunction", ctypes.byref(function), module, b"spin_500ms")
    c.check("cuStreamCreate", ctypes.byref(stream), 1)
    for event in (start, end):
        c.check("cuEventCreate", ctypes.byref(event), 0)
    began = time.monotonic()
    c.check("cuEventRecord", start, stream)
    c.check("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
    c.check("cuEventRecord", end, stream)
    assert c.call("cuEventQuery", end) == c.call("cuStreamQuery", stream) == 600
    assert c.call("cuStreamQuery", 0) == SUCCESS, "another stream has nothing to wait for"
    c.check("cuLaunchKernel_ptsz", function, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
    assert c.call("cuStreamQuery", 0) == SUCCESS and c.call("cuStreamQuery_ptsz", 0) == 600
    c.check("cuEventSynchronize", end)
    c.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
    assert 500 <= elapsed.value < 900, elapsed.value
    c.check("cuCtxSynchronize")
    assert time.monotonic() - began >= 1.0


def forks() -> None:
    c = Cuda()
    assert c.allocate(1 << 30)[0] == SUCCESS
    if (child := os.fork()) == 0:
        os._exit(c.call("cuInit", 0) * 10 + c.allocate(1)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 33
    assert c.info()[1] - c.info()[0] == 1 << 30, "the end of the child freed nothing of the parent"


def on_a_gpu_that_fails(simgpu_command: str, gpus: str) -> None:
    c = Cuda()

    def simgpu(*words: str) -> object:
        return subprocess.run([simgpu_command, words[0], gpus, "0", *words[1:]])

    simgpu("fail", "ecc")
    assert c.allocate(1)[0] == c.call("cuCtxSynchronize") == 214
    simgpu("heal")
    assert c.allocate(1)[0] == SUCCESS
    simgpu("fail", "lost")
    assert c.allocate(1)[0] == 999


def forms() -> None:
    c = Cuda(proc=True)
    d = Cuda()
    forms = {
        ("cuMemAlloc", 2000, 0): "cuMemAlloc",
        ("cuMemAlloc", 3020, 0): "cuMemAlloc_v2",
        ("cuMemAlloc", 12040, PER_THREAD): "cuMemAlloc_v2",
        ("cuLaunchKernel", 4000, PER_THREAD): "cuLaunchKernel",
        ("cuLaunchKernel", 7000, PER_THREAD): "cuLaunchKernel_ptsz",
        ("cuLaunchKernel", 7000, 0): "cuLaunchKernel",
        ("cuGetProcAddress", 11030, 0): "cuGetProcAddress",
        ("cuGetProcAddress", 12000, 0): "cuGetProcAddress_v2",
    }
    for (name, version, flags), symbol in forms.items():
        assert c.proc_address(name, version, flags) == d.address(symbol) is not None, (name, version, flags)
    assert c.proc_address("cuMemAlloc_v2", 12000) is None
