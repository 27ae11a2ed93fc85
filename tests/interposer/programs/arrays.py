"""Programs that create arrays in every way, sparse ones included."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import (
    MIB,
    OUT_OF_MEMORY,
    SUCCESS,
    Array3DDescriptor,
    ArrayDescriptor,
    ArrayMapping,
    Cuda,
    OldArrayDescriptor,
    on_device,
)

LIMIT = 64 * MIB
BYTE, FLOAT = 0x01, 0x20
SPARSE, DEFERRED = 0x40, 0x80


class Arrays(Cuda):
    """A driver client that creates arrays and mipmapped arrays."""

    def __init__(self, *, proc: bool = False) -> None:
        super().__init__(proc=proc)
        self.array, self.mipmap = ctypes.c_void_p(), ctypes.c_void_p()

    def used(self) -> int:
        return LIMIT - self.info()[0]

    def flat(self, width: int, height: int, form: int = BYTE, channels: int = 1) -> int:
        what = ArrayDescriptor(width=width, height=height, format=form, channels=channels)
        return self.call("cuArrayCreate_v2", ctypes.byref(self.array), ctypes.byref(what))

    def deep(self, width: int, height: int, depth: int, flags: int = 0) -> int:
        what = Array3DDescriptor(width=width, height=height, depth=depth, format=BYTE, channels=1, flags=flags)
        return self.call("cuArray3DCreate_v2", ctypes.byref(self.array), ctypes.byref(what))

    def mipped(self, width: int, height: int, levels: int, flags: int = 0) -> int:
        what = Array3DDescriptor(width=width, height=height, format=BYTE, channels=1, flags=flags)
        return self.call("cuMipmappedArrayCreate", ctypes.byref(self.mipmap), ctypes.byref(what), levels)

    def destroy(self) -> None:
        self.check("cuArrayDestroy", self.array)


def fills_with_arrays(proc: bool) -> None:
    c = Arrays(proc=proc)
    assert c.flat(8192, 8193) == OUT_OF_MEMORY
    assert c.flat(8192, 8192) == SUCCESS
    assert c.used() == 64 * MIB and c.flat(1, 1) == OUT_OF_MEMORY
    c.destroy()
    assert c.used() == 0
    assert c.flat(8193, 4096) == SUCCESS and c.used() == (8192 + 64) * 4096
    c.destroy()
    assert c.flat(2048, 8192, FLOAT) == SUCCESS and c.used() == 64 * MIB
    c.destroy()
    assert c.flat(1024, 4096, FLOAT, 4) == SUCCESS and c.used() == 64 * MIB


def every_kind() -> None:
    c = Arrays()
    assert c.deep(1024, 1024, 64) == SUCCESS and c.used() == 64 * MIB
    c.destroy()
    assert c.deep(1024, 1024, 65) == OUT_OF_MEMORY
    assert c.deep(1024, 1024, 3, flags=1) == SUCCESS and c.used() == 3 * MIB, "layers"
    c.destroy()
    assert c.mipped(4096, 4096, 3) == SUCCESS and c.used() == 21 * MIB
    c.check("cuMipmappedArrayDestroy", c.mipmap)
    assert c.mipped(8192, 8192, 2) == OUT_OF_MEMORY
    old = OldArrayDescriptor(width=1024, height=1024, format=BYTE, channels=2)
    assert c.call("cuArrayCreate", ctypes.byref(c.array), ctypes.byref(old)) == SUCCESS
    assert c.used() == 2 * MIB
    c.destroy()
    assert c.used() == 0
    assert c.call("cuArrayDestroy", None) != SUCCESS
    assert c.flat(0, 0) not in (SUCCESS, OUT_OF_MEMORY)
    assert c.used() == 0


def ends_a_context() -> None:
    c = Arrays()
    context = c.made("cuCtxCreate_v2", 0, 0)
    assert c.flat(1024, 1024) == SUCCESS and c.mipped(1024, 1024, 1) == SUCCESS
    assert c.used() == 2 * MIB
    c.check("cuCtxDestroy_v2", context)
    c.use(0)
    assert c.used() == 0
    assert c.flat(8192, 8192) == SUCCESS


def sparse() -> None:
    c = Arrays()
    assert c.deep(1 << 20, 1 << 20, 0, flags=SPARSE) == SUCCESS and c.used() == 0
    assert c.mipped(1 << 20, 1 << 20, 1, flags=DEFERRED) == SUCCESS and c.used() == 0
    handles = [ctypes.c_uint64() for _ in range(2)]
    for handle in handles:
        c.check("cuMemCreate", ctypes.byref(handle), 32 * MIB, ctypes.byref(on_device(0)), 0)
    assert c.used() == 64 * MIB

    def put(into: ctypes.c_void_p, handle: ctypes.c_uint64, at: int = 0, operation: int = 1) -> None:
        mapping = ArrayMapping(resource=into.value, operation=operation, handle=handle.value, devices=1)
        mapping.subresource[0] = at
        c.check("cuMemMapArrayAsync", ctypes.byref(mapping), 1, 0)

    put(c.array, handles[0])
    put(c.array, handles[0], at=1)
    put(c.mipmap, handles[1])
    for handle in handles:
        c.check("cuMemRelease", handle.value)
    assert c.used() == 64 * MIB, "the mapped memory is used"
    put(c.array, handles[0], operation=2)
    assert c.used() == 64 * MIB
    c.destroy()
    assert c.used() == 32 * MIB
    c.check("cuMipmappedArrayDestroy", c.mipmap)
    assert c.used() == 0
