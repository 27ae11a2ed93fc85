"""Functions that CUDA 13.0 has added or changed, as a program calls them."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.interposer.cuda_client import MIB, NOT_SUPPORTED, PER_THREAD, SUCCESS, Cuda, Location

INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, NOT_FOUND, NOT_READY = 1, 101, 201, 500, 600
PINNED, MANAGED = 1, 2
ON_GPU = Location(type=1, id=0)


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (("order", ctypes.c_int), ("source", Location), ("target", Location), ("flags", ctypes.c_uint))


class Operand(ctypes.Structure):
    """CUmemcpy3DOperand for a pointer."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("pointer", ctypes.c_uint64),
        ("row", ctypes.c_size_t),
        ("layer", ctypes.c_size_t),
        ("hint", Location),
    )


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D_BATCH_OP."""

    _fields_ = (
        ("source", Operand),
        ("target", Operand),
        ("extent", ctypes.c_size_t * 3),
        ("order", ctypes.c_int),
        ("flags", ctypes.c_uint),
    )


def words(*values: int) -> Any:
    return (ctypes.c_uint64 * len(values))(*values)


def contexts() -> None:
    c = Cuda(device=None)
    device, number, other = ctypes.c_int(9), ctypes.c_uint64(), ctypes.c_uint64()
    assert c.call("cuCtxGetDevice_v2", ctypes.byref(device), None) == INVALID_CONTEXT, "none is current"
    first, second = (c.made("cuDevicePrimaryCtxRetain", each) for each in (0, 1))
    c.check("cuCtxSetCurrent", first)
    for context, expected in ((second, 1), (None, 0)):
        c.check("cuCtxGetDevice_v2", ctypes.byref(device), context)
        assert device.value == expected
    assert c.call("cuCtxGetDevice_v2", ctypes.byref(device), 4096) == INVALID_CONTEXT
    c.check("cuCtxSetCurrent", second)
    event = c.made("cuEventCreate", 0)
    c.launch(c.kernel("k_200ms"))
    c.check("cuEventRecord", event, 0)
    c.check("cuCtxSetCurrent", first)
    assert c.call("cuEventQuery", event) == NOT_READY
    c.check("cuCtxSynchronize_v2", second)
    c.check("cuEventQuery", event)
    green = [c.made("cuGreenCtxCreate", None, each, 1) for each in (0, 1)]
    c.check("cuGreenCtxGetId", green[0], ctypes.byref(number))
    c.check("cuGreenCtxGetId", green[1], ctypes.byref(other))
    assert number.value != other.value
    assert c.call("cuGreenCtxGetId", green[0], None) == INVALID_VALUE


def atomics() -> None:
    c = Cuda()
    capabilities, operations = (ctypes.c_uint * 2)(7, 7), (ctypes.c_int * 2)(0, 12)
    c.check("cuDeviceGetHostAtomicCapabilities", capabilities, operations, 2, 0)
    assert list(capabilities) == [0, 0], "as attribute 86 says"
    c.check("cuDeviceGetP2PAtomicCapabilities", capabilities, operations, 2, 0, 1)
    assert c.call("cuDeviceGetP2PAtomicCapabilities", capabilities, operations, 2, 0, 0) == INVALID_DEVICE
    operations[1] = 13
    assert c.call("cuDeviceGetHostAtomicCapabilities", capabilities, operations, 2, 0) == INVALID_VALUE
    assert c.call("cuDeviceGetHostAtomicCapabilities", capabilities, operations, 0, 0) == INVALID_VALUE


def pools() -> None:
    c = Cuda()

    def pool(symbol: str, kind: int, location: Location = ON_GPU) -> int | None:
        return c.made(symbol, ctypes.byref(location), kind).value

    usual, managed = (pool("cuMemGetDefaultMemPool", kind) for kind in (PINNED, MANAGED))
    assert usual == c.default_pool().value == pool("cuMemGetMemPool", PINNED)
    assert managed == pool("cuMemGetMemPool", MANAGED) != usual
    own = c.made("cuMemPoolCreate", ctypes.byref((ctypes.c_uint64 * 11)(PINNED, 1, 0)))
    c.check("cuMemSetMemPool", ctypes.byref(ON_GPU), PINNED, own)
    assert pool("cuMemGetMemPool", PINNED) == own.value
    assert c.made("cuDeviceGetMemPool", 0).value == own.value
    assert pool("cuMemGetDefaultMemPool", PINNED) == usual
    assert c.call("cuMemSetMemPool", ctypes.byref(ON_GPU), MANAGED, own) == INVALID_VALUE, "of another kind"
    assert c.call("cuMemSetMemPool", ctypes.byref(Location(type=1, id=1)), PINNED, own) == INVALID_VALUE
    result, pointer = c.allocate(MIB, "cuMemAllocFromPoolAsync", ctypes.c_void_p(managed), 0)
    assert result == SUCCESS
    is_managed = ctypes.c_uint()
    c.check("cuPointerGetAttribute", ctypes.byref(is_managed), 8, pointer)
    assert is_managed.value == 1
    for kind, location, expected in (
        (PINNED, Location(type=2), NOT_SUPPORTED),
        (MANAGED, Location(type=0), NOT_SUPPORTED),
        (PINNED, Location(type=0), INVALID_VALUE),
        (3, ON_GPU, INVALID_VALUE),
        (PINNED, Location(type=1, id=9), INVALID_DEVICE),
    ):
        assert (
            c.call("cuMemGetDefaultMemPool", ctypes.byref(ctypes.c_void_p()), ctypes.byref(location), kind) == expected
        )


def copies(symbol: str) -> None:
    """Copy in batches to the GPU, on it, and back, with all forms of the function."""
    c = Cuda()
    stream, failed = c.made("cuStreamCreate", 1), ctypes.c_size_t(7)
    more = () if "_v2" in symbol else (ctypes.byref(failed),)
    source, target = ctypes.create_string_buffer(b"abcdefgh"), ctypes.create_string_buffer(8)
    (_, one), (_, other) = c.allocate(4), c.allocate(4)
    order = (CopyAttributes * 2)(CopyAttributes(order=1), CopyAttributes(order=2))

    def batch(to: Any, of: Any, sizes: Any, first: Any = None, where: Any = stream) -> int:
        first = first or words(0, 1)
        return c.call(symbol, to, of, sizes, len(sizes), order, first, len(first), *more, where)

    begin = ctypes.addressof(source)
    assert batch(words(one, other), words(begin, begin + 4), words(4, 4)) == SUCCESS
    begin = ctypes.addressof(target)
    assert batch(words(begin, begin + 4), words(other, one), words(4, 4)) == SUCCESS
    c.check("cuStreamSynchronize", stream)
    assert target.raw == b"efghabcd"
    assert batch(words(one, other), words(other, one), words(4, 5)) == INVALID_VALUE
    assert not more or failed.value == 1
    assert batch(words(one, other), words(other, one), words(4, 4), words(1, 0)) == INVALID_VALUE
    assert batch(words(one, other), words(other, one), words(4, 4), where=1) == INVALID_VALUE
    order[1].order = 4
    assert batch(words(one, other), words(other, one), words(4, 4)) == INVALID_VALUE


def copies_in_three_dimensions(symbol: str) -> None:
    c = Cuda()
    stream, failed = c.made("cuStreamCreate", 1), ctypes.c_size_t(7)
    more = () if "_v2" in symbol else (ctypes.byref(failed),)
    image, cut = ctypes.create_string_buffer(bytes(range(64))), ctypes.create_string_buffer(8)
    _, pointer = c.allocate(64)
    whole = Copy3D(
        source=Operand(type=1, pointer=ctypes.addressof(image)),
        target=Operand(type=1, pointer=pointer),
        extent=(4, 4, 4),
        order=1,
    )
    corner = Copy3D(
        source=Operand(type=1, pointer=pointer, row=4, layer=4),
        target=Operand(type=1, pointer=ctypes.addressof(cut)),
        extent=(2, 2, 2),
        order=3,
    )
    for one in (whole, corner):
        c.check(symbol, 1, ctypes.byref(one), *more, 0, stream)
    c.check("cuStreamSynchronize", stream)
    assert list(cut.raw) == [0, 1, 4, 5, 16, 17, 20, 21]
    corner.source.row = 1
    both = (Copy3D * 2)(whole, corner)
    assert c.call(symbol, 2, both, *more, 0, stream) == INVALID_VALUE
    assert not more or failed.value == 1
    assert c.call(symbol, 1, ctypes.byref(whole), *more, 0, 0 if "ptsz" not in symbol else 1) == INVALID_VALUE


def moves(form: str) -> None:
    c = Cuda()
    stream = c.made("cuStreamCreate", 1)
    _, managed = c.allocate(MIB, "cuMemAllocManaged", 1)
    _, plain = c.allocate(MIB)
    sizes, places = words(MIB // 2, MIB // 2), (words(managed, managed + MIB // 2), ON_GPU)
    place, first = ctypes.byref(places[1]), words(0)
    for pointers, expected in ((places[0], SUCCESS), (words(managed, plain), INVALID_VALUE)):
        assert c.call("cuMemPrefetchBatchAsync" + form, pointers, sizes, 2, place, first, 1, 0, stream) == expected
        assert c.call("cuMemDiscardBatchAsync" + form, pointers, sizes, 2, 0, stream) == expected
        discards = "cuMemDiscardAndPrefetchBatchAsync" + form
        assert c.call(discards, pointers, sizes, 2, place, first, 1, 0, stream) == expected
    nowhere = ctypes.byref(Location(type=1, id=9))
    prefetch = "cuMemPrefetchBatchAsync" + form
    assert c.call(prefetch, places[0], sizes, 2, nowhere, first, 1, 0, stream) == INVALID_DEVICE
    assert c.call(prefetch, places[0], sizes, 2, place, first, 1, 1, stream) == INVALID_VALUE


def versions() -> None:
    """cuGetProcAddress returns the functions of a CUDA 13.0 driver, and none of later ones."""
    c = Cuda()
    version = ctypes.c_int()
    c.check("cuDriverGetVersion", ctypes.byref(version))
    assert version.value == 13000
    for name, asked, flags, symbol in (
        ("cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"),
        ("cuMemcpyBatchAsync", 12080, PER_THREAD, "cuMemcpyBatchAsync_ptsz"),
        ("cuMemcpyBatchAsync", 13000, PER_THREAD, "cuMemcpyBatchAsync_v2_ptsz"),
        ("cuGraphAddNode", 13000, 0, "cuGraphAddNode_v2"),
    ):
        assert c.proc_address(name, asked, flags) == c.address(symbol) is not None, (name, asked)
    pointer, status = ctypes.c_void_p(), ctypes.c_int()
    for name, asked, expected in (
        ("cuCtxSynchronize", 13010, (INVALID_VALUE, 0)),
        ("cuMemGetMemPool", 12090, (NOT_FOUND, 2)),
        ("cuStreamBeginRecaptureToGraph", 13000, (NOT_FOUND, 2)),
    ):
        status.value = 0
        ask = ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2
        ask.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
        result = ask(name.encode(), ctypes.byref(pointer), asked, 0, ctypes.byref(status))
        assert (result, status.value) == expected, name


def gpu() -> None:
    """Check an H100's properties with the newest driver of CUDA 13.0."""
    c = Cuda()
    free_bytes, total_bytes = c.info()
    name = ctypes.create_string_buffer(96)
    c.check("cuDeviceGetName", name, 96, 0)
    _, pointer = c.allocate(1)
    blocks = free_bytes - c.info()[0]
    assert c.free(pointer) == SUCCESS
    print(name.value.decode(), total_bytes // MIB, (total_bytes - free_bytes) // MIB, blocks // MIB, sep="\n")
