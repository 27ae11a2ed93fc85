"""Driver calls of frameworks: attributes, kernels of any name, libraries, pointer attributes, settings, blocks."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.interposer.cuda_client import MIB, NOT_SUPPORTED, SUCCESS, Cuda


def not_simulated() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuMulticastCreate(0, 0) == 3, "before cuInit"
    c = Cuda()
    for name in ("cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuTexObjectCreate"):
        assert c.proc_address(name, 12040) == c.address(name)
        assert c.call(name, 0, 0, 0, 0) == NOT_SUPPORTED


def every_attribute() -> None:
    c = Cuda()

    def attribute(number: int, device: int = 0) -> int:
        value = ctypes.c_int(-7)
        return c.call("cuDeviceGetAttribute", ctypes.byref(value), number, device) or value.value

    numbers = {number: attribute(number) for number in range(1, 148)}
    assert all(value >= 0 for value in numbers.values())
    assert numbers[17] == numbers[132] == 0, "no limit of run time, no multicast"
    assert (numbers[75], numbers[76], numbers[81], numbers[97], numbers[39]) == (8, 0, 164 << 10, 163 << 10, 2048)
    assert (attribute(81, 2), attribute(39, 2)) == (100 << 10, 1536), "an L4"
    value = ctypes.c_int()
    for number in (0, -1 & 0xFFFFFFFF, 148, 9999):
        assert c.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), 0) == 1
    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    c.check("cuDeviceGetPCIBusId", text, 32, 2)
    c.check("cuDeviceGetByPCIBusId", ctypes.byref(device), text)
    assert device.value == 2
    assert c.call("cuDeviceGetByPCIBusId", ctypes.byref(device), b"0000:66:00.0") == 101
    can = ctypes.c_int()
    c.check("cuDeviceCanAccessPeer", ctypes.byref(can), 0, 1)
    assert can.value == 1


def kernel_of_any_name() -> None:
    c = Cuda()
    module, function, milliseconds = c.made("cuModuleLoadData", b"image"), ctypes.c_void_p(), ctypes.c_float()
    assert c.call("cuModuleGetFunction", ctypes.byref(function), module, b"") == 500
    result = c.call("cuModuleGetFunction", ctypes.byref(function), module, b"_Z5scalefPf")
    if result == SUCCESS:
        begin, end = c.made("cuEventCreate", 0), c.made("cuEventCreate", 0)
        c.check("cuEventRecord", begin, 0)
        for _ in range(10):
            c.launch(function)
        c.check("cuEventRecord", end, 0)
        c.check("cuCtxSynchronize")
        c.check("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
    print(result, milliseconds.value)
    c.check("cuModuleGetFunction", ctypes.byref(function), module, b"spin_1us")


def kernel_of_a_library_where_its_stream_is() -> None:
    c = Cuda(device=1)
    stream = c.made("cuStreamCreate", 0)
    of_module = c.kernel("spin_300ms")
    library = c.made("cuLibraryLoadData", b"code", None, None, 0, None, None, 0)
    kernel = c.made("cuLibraryGetKernel", library, b"spin_300ms")
    c.made("cuDevicePrimaryCtxRetain", 1)
    for device in (0, None):
        if device is None:
            c.check("cuCtxSetCurrent", None)
        else:
            c.use(device)
        arguments = (1, 1, 1, 1, 1, 1, 0, stream, None, None)
        c.check("cuLaunchKernel", kernel, *arguments)
        assert c.call("cuStreamQuery", stream) == 600
        c.check("cuStreamSynchronize", stream)
        assert c.call("cuLaunchKernel", of_module, *arguments) in (201, 400)
    assert c.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 201


def library_in_every_context() -> None:
    c = Cuda()
    library = c.made("cuLibraryLoadData", b"code", None, None, 0, None, None, 0)
    kernel = c.made("cuLibraryGetKernel", library, b"spin_50us")
    assert kernel.value == c.made("cuLibraryGetKernel", library, b"spin_50us").value
    name, count = ctypes.c_char_p(), ctypes.c_uint()
    c.check("cuKernelGetName", ctypes.byref(name), kernel)
    c.check("cuLibraryGetKernelCount", ctypes.byref(count), library)
    assert (name.value, count.value) == (b"spin_50us", 1)
    for device in (0, 1):
        c.use(device)
        function = c.made("cuKernelGetFunction", kernel)
        c.launch(function)
        c.check("cuCtxSynchronize")
    value, grid, block = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    c.check("cuFuncGetAttribute", ctypes.byref(value), 0, function)
    assert value.value == 1024
    c.check("cuFuncSetAttribute", function, 8, ctypes.c_int(100000))
    c.check("cuKernelGetAttribute", ctypes.byref(value), 8, kernel, 0)
    assert value.value == 100000
    c.check("cuOccupancyMaxPotentialBlockSize", ctypes.byref(grid), ctypes.byref(block), function, None, 0, 0)
    assert (grid.value, block.value) == (216, 1024), "two blocks of 1,024 threads on each of 108 multiprocessors"
    assert c.call("cuLibraryGetGlobal", ctypes.byref(ctypes.c_uint64()), None, library, b"variable") == 500
    c.check("cuLibraryUnload", library)


def kinds_of_addresses() -> None:
    c = Cuda()

    def attribute(number: int, pointer: int, kind: Any = ctypes.c_uint64) -> Any:
        value = kind()
        return c.call("cuPointerGetAttribute", ctypes.byref(value), number, pointer) or value.value

    _, plain = c.allocate(1 << 20)
    _, pooled = c.allocate(4096, "cuMemAllocAsync", 0)
    _, managed = c.allocate(4096, "cuMemAllocManaged", 1)
    pinned = c.made("cuMemHostAlloc", 4096, 0).value or 0
    buffer = ctypes.create_string_buffer(8192)
    registered = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
    c.check("cuMemHostRegister_v2", registered, 4096, 0)
    assert c.call("cuMemHostRegister_v2", registered, 4096, 0) == 712
    kinds = [attribute(2, address + 100, ctypes.c_uint) for address in (plain, pooled, managed, pinned, registered)]
    assert kinds == [2, 2, 2, 1, 1]
    assert (attribute(11, plain + 5000), attribute(12, plain + 5000)) == (plain, 1 << 20)
    assert [attribute(8, address, ctypes.c_bool) for address in (plain, managed)] == [0, 1]
    assert attribute(17, pooled) == c.default_pool().value
    assert attribute(2, 0x1234, ctypes.c_uint) == 1, "unknown: CUDA_ERROR_INVALID_VALUE"
    numbers, kind, device = (ctypes.c_int * 2)(2, 9), ctypes.c_uint(9), ctypes.c_int(9)
    c.check(
        "cuPointerGetAttributes",
        2,
        numbers,
        (ctypes.c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(device)),
        0x1234,
    )
    assert (kind.value, device.value) == (0, -2)
    c.check("cuMemHostUnregister", registered)
    assert c.call("cuMemHostUnregister", registered) == 713
    c.check("cuMemFreeHost", pinned)
    assert c.call("cuMemFreeHost", pinned) == 1


def settings() -> None:
    c = Cuda()
    pool, value, size = c.default_pool(), ctypes.c_int(0), ctypes.c_size_t()
    for number in (1, 2, 3):
        c.check("cuMemPoolSetAttribute", pool, number, ctypes.byref(ctypes.c_int(0)))
        c.check("cuMemPoolGetAttribute", pool, number, ctypes.byref(value))
        assert value.value == 0
        c.check("cuMemPoolSetAttribute", pool, number, ctypes.byref(ctypes.c_int(1)))
        c.check("cuMemPoolGetAttribute", pool, number, ctypes.byref(value))
        assert value.value == 1
    c.check("cuCtxSetLimit", 0, 4096)
    c.check("cuCtxGetLimit", ctypes.byref(size), 0)
    assert size.value == 4096
    low = c.made("cuStreamCreateWithPriority", 1, ctypes.c_int(-99))
    c.check("cuStreamGetPriority", low, ctypes.byref(value))
    assert value.value == -5
    c.check("cuStreamGetFlags", low, ctypes.byref(value))
    assert value.value == 1
    ids = [ctypes.c_uint64(), ctypes.c_uint64()]
    for identity, stream in zip(ids, (low, c.made("cuStreamCreate", 0)), strict=False):
        c.check("cuStreamGetId", stream, ctypes.byref(identity))
    assert ids[0].value != ids[1].value


def memory_in_blocks() -> None:
    c = Cuda()

    def used() -> float:
        return (c.info()[1] - c.info()[0]) / MIB

    small = [c.allocate(1)[1] for _ in range(4096)]
    assert used() == 2, "512 bytes each"
    small.append(c.allocate(1)[1])
    assert used() == 4
    large = c.allocate(3 * MIB)[1]
    assert used() == 8
    for pointer in small:
        assert c.free(pointer) == SUCCESS
    assert used() == 4
    assert c.free(large) == SUCCESS
    assert used() == 0
    c.use(2)
    c.allocate(1)
    assert c.info()[1] - c.info()[0] == 1, "other GPUs allocate to the byte"
    second = c.made("cuCtxCreate_v2", 0, 1)
    c.allocate(5)
    c.check("cuCtxDestroy_v2", second)
    c.use(1)
    assert used() == 0, "memory ends with its context"
