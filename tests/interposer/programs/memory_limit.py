"""Programs that allocate in every way up to the limit."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from tests.interposer.cuda_client import (
    MIB,
    NOT_PERMITTED,
    OUT_OF_MEMORY,
    SUCCESS,
    Cuda,
    Location,
    Properties,
    on_device,
)

Attempt = tuple[int, Callable[[], int]]  # the result, and a function that frees the memory


def plain(c: Cuda, size: int) -> Attempt:
    result, pointer = c.allocate(size)
    return result, lambda: c.free(pointer)


def plain_of_32_bits(c: Cuda, size: int) -> Attempt:
    pointer = ctypes.c_uint32()
    result = c.call("cuMemAlloc", ctypes.byref(pointer), size)
    return result, lambda: c.call("cuMemFree", pointer.value)


def managed(c: Cuda, size: int) -> Attempt:
    result, pointer = c.allocate(size, "cuMemAllocManaged", 1)
    return result, lambda: c.free(pointer)


def stream_ordered(c: Cuda, size: int) -> Attempt:
    result, pointer = c.allocate(size, "cuMemAllocAsync", 0)
    return result, lambda: c.call("cuMemFreeAsync", pointer, 0)


def stream_ordered_per_thread(c: Cuda, size: int) -> Attempt:
    result, pointer = c.allocate(size, "cuMemAllocAsync_ptsz", 0)
    return result, lambda: c.call("cuMemFreeAsync_ptsz", pointer, 0)


def from_a_pool(c: Cuda, size: int) -> Attempt:
    result, pointer = c.allocate(size, "cuMemAllocFromPoolAsync", c.default_pool(), 0)
    return result, lambda: c.call("cuMemFreeAsync", pointer, 0)


def from_a_pool_per_thread(c: Cuda, size: int) -> Attempt:
    result, pointer = c.allocate(size, "cuMemAllocFromPoolAsync_ptsz", c.default_pool(), 0)
    return result, lambda: c.free(pointer)


KINDS = {
    "plain": plain,
    "plain of 32 bits": plain_of_32_bits,
    "managed": managed,
    "stream-ordered": stream_ordered,
    "stream-ordered per thread": stream_ordered_per_thread,
    "from a pool": from_a_pool,
    "from a pool per thread": from_a_pool_per_thread,
}


def byte_above_the_limit(kind: str, proc: bool, limit: int) -> None:
    c, attempt = Cuda(proc=proc), KINDS[kind]
    assert attempt(c, limit + 1)[0] == OUT_OF_MEMORY
    result, undo = attempt(c, limit)
    assert result == SUCCESS
    assert attempt(c, 1)[0] == OUT_OF_MEMORY
    assert undo() == SUCCESS
    assert attempt(c, limit)[0] == SUCCESS


def rows() -> None:
    c, pointer, pitch = Cuda(), ctypes.c_uint64(), ctypes.c_size_t()

    def pitched(width: int, height: int) -> int:
        return c.call("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch), width, height, 4)

    assert pitched(513, 65536) == SUCCESS and pitch.value == 1024
    assert c.free(pointer.value) == SUCCESS
    assert pitched(513, 65537) == OUT_OF_MEMORY
    assert pitched((1 << 64) - 1, 2) == OUT_OF_MEMORY
    assert c.info()[0] == 64 * MIB


def ends_contexts() -> None:
    c = Cuda()
    assert c.allocate(10 * MIB)[0] == SUCCESS
    context = c.made("cuCtxCreate_v2", 0, 0)
    assert c.allocate(20 * MIB)[0] == SUCCESS
    assert c.info()[0] == 34 * MIB
    c.check("cuCtxDestroy_v2", context)
    assert c.info()[0] == 54 * MIB, "the other context's memory is still charged"
    assert c.call("cuCtxDestroy_v2", context) != SUCCESS
    assert c.info()[0] == 54 * MIB
    c.use(0)
    c.check("cuDevicePrimaryCtxRelease_v2", 0)
    assert c.info()[0] == 54 * MIB, "one of two references is left"
    c.check("cuDevicePrimaryCtxReset_v2", 0)
    c.use(0)
    assert c.info()[0] == 64 * MIB


def frees_wrongly() -> None:
    c = Cuda()
    _, pointer = c.allocate(MIB)
    assert c.free(pointer + 4096) != SUCCESS
    assert c.info()[0] == 63 * MIB
    c.check("cuCtxSetCurrent", None)
    assert c.free(pointer) != SUCCESS, "no context"
    c.use(0)
    assert c.info()[0] == 63 * MIB
    assert c.free(pointer) == SUCCESS
    assert c.free(pointer) != SUCCESS
    assert c.info()[0] == 64 * MIB


def handles_and_mappings() -> None:
    c = Cuda()
    handle, other, address = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()

    def create(size: int) -> int:
        return c.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(on_device(0)), 0)

    def used() -> int:
        return 64 * MIB - c.info()[0]

    assert create(66 * MIB) == OUT_OF_MEMORY
    assert create(64 * MIB) == SUCCESS
    c.check("cuMemAddressReserve", ctypes.byref(address), 128 * MIB, 0, 0, 0)
    c.check("cuMemMap", address.value, 64 * MIB, 0, handle.value, 0)
    assert c.call("cuMemMap", address.value, 64 * MIB, 0, handle.value, 0) != SUCCESS
    c.check("cuMemMap", address.value + 64 * MIB, 64 * MIB, 0, handle.value, 0)
    c.check("cuMemRetainAllocationHandle", ctypes.byref(other), address.value + 70 * MIB)
    c.check("cuMemRelease", handle.value)
    assert used() == 64 * MIB
    c.check("cuMemRelease", handle.value)
    assert used() == 64 * MIB
    assert c.call("cuMemRelease", 999) != SUCCESS
    c.check("cuMemUnmap", address.value, 128 * MIB)
    assert used() == 0
    assert create(64 * MIB) == SUCCESS


def limit_of_a_device(device: int, limit: int) -> None:
    c = Cuda(device=device)
    assert c.allocate(limit + 1)[0] == OUT_OF_MEMORY
    assert c.allocate(limit)[0] == SUCCESS


def in_a_stream_elsewhere() -> None:
    c = Cuda(device=1)
    stream = c.made("cuStreamCreate", 0)
    c.use(0)
    assert c.allocate(64 * MIB + 1, "cuMemAllocAsync", stream)[0] == OUT_OF_MEMORY
    assert c.allocate(64 * MIB, "cuMemAllocAsync", stream)[0] == SUCCESS
    assert c.info()[0] == 32 * MIB
    pool = c.made("cuMemPoolCreate", ctypes.byref(on_device(0)))
    assert c.allocate(32 * MIB, "cuMemAllocFromPoolAsync", pool, stream)[0] == SUCCESS
    assert c.info()[0] == 0


def on_another_gpu() -> None:
    c = Cuda(device=1)
    assert c.allocate(1)[0] == NOT_PERMITTED
    assert c.allocate(1, "cuMemAllocAsync", 0)[0] == NOT_PERMITTED
    handle = ctypes.c_uint64()
    assert c.call("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(on_device(1)), 0) == NOT_PERMITTED


def allocates_for_each_line() -> None:
    c = Cuda()
    for line in sys.stdin:
        print(c.allocate(int(line))[0], c.info()[1], flush=True)


def where_no_limit_is_kept() -> None:
    c, properties = Cuda(), Properties(type=1, location=Location(type=5, id=-2))
    for _ in range(2):
        print(c.call("cuMemCreate", ctypes.byref(ctypes.c_uint64()), 2 * MIB, ctypes.byref(properties), 0))


def captures_for_graphics(symbol: str) -> None:
    c = Cuda()
    print(c.call(symbol, c.made("cuStreamCreate", 1), None))
