"""Arrays are charged for what they take, in whatever way they are made; sparse ones for what is mapped into them.

On simulated GPUs rows come in steps of 64 bytes and in eights, and the library is told so by the driver.
"""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container

LIMIT = 64 * MIB
PRELUDE = f"""
c = Cuda()
used = lambda: {LIMIT} - c.info()[0]
BYTE, FLOAT = 0x01, 0x20
array, mipmap = ctypes.c_void_p(), ctypes.c_void_p()
flat = lambda width, height, format=BYTE, channels=1: c.call("cuArrayCreate_v2", ctypes.byref(array),
    ctypes.byref(ArrayDescriptor(width=width, height=height, format=format, channels=channels)))
deep = lambda width, height, depth, format=BYTE, flags=0: c.call("cuArray3DCreate_v2", ctypes.byref(array),
    ctypes.byref(Array3DDescriptor(width=width, height=height, depth=depth, format=format, channels=1, flags=flags)))
mipped = lambda width, height, levels, flags=0: c.call("cuMipmappedArrayCreate", ctypes.byref(mipmap),
    ctypes.byref(Array3DDescriptor(width=width, height=height, format=BYTE, channels=1, flags=flags)), levels)
destroy = lambda: c.check("cuArrayDestroy", array)
"""


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
def test_the_byte_above_the_limit_is_refused(container: Container, make_arbiter: ArbiterMaker, proc: bool) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE.replace("Cuda()", f"Cuda(proc={proc})")
        + """
assert flat(8192, 8193) == OUT_OF_MEMORY
assert flat(8192, 8192) == SUCCESS
assert used() == 64 * MIB and flat(1, 1) == OUT_OF_MEMORY
destroy()
assert used() == 0
assert flat(8193, 4096) == SUCCESS and used() == (8192 + 64) * 4096
destroy()
assert flat(2048, 8192, FLOAT) == SUCCESS and used() == 64 * MIB
destroy()
assert flat(1024, 4096, FLOAT, 4) == SUCCESS and used() == 64 * MIB
"""
    )


def test_every_kind_of_array_is_charged(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
assert deep(1024, 1024, 64) == SUCCESS and used() == 64 * MIB
destroy()
assert deep(1024, 1024, 65) == OUT_OF_MEMORY
assert deep(1024, 1024, 3, flags=1) == SUCCESS and used() == 3 * MIB, "layers"
destroy()
assert mipped(4096, 4096, 3) == SUCCESS and used() == 21 * MIB
c.check("cuMipmappedArrayDestroy", mipmap)
assert mipped(8192, 8192, 2) == OUT_OF_MEMORY
old = OldArrayDescriptor(width=1024, height=1024, format=BYTE, channels=2)
assert c.call("cuArrayCreate", ctypes.byref(array), ctypes.byref(old)) == SUCCESS
assert used() == 2 * MIB
destroy()
assert used() == 0
assert c.call("cuArrayDestroy", None) != SUCCESS
assert flat(0, 0) not in (SUCCESS, OUT_OF_MEMORY)
assert used() == 0
"""
    )


def test_arrays_end_with_their_context(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
context = c.made("cuCtxCreate_v2", 0, 0)
assert flat(1024, 1024) == SUCCESS and mipped(1024, 1024, 1) == SUCCESS
assert used() == 2 * MIB
c.check("cuCtxDestroy_v2", context)
c.use(0)
assert used() == 0
assert flat(8192, 8192) == SUCCESS
"""
    )


def test_a_sparse_array_takes_what_is_mapped_into_it(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
SPARSE, DEFERRED = 0x40, 0x80
assert deep(1 << 20, 1 << 20, 0, flags=SPARSE) == SUCCESS and used() == 0
assert mipped(1 << 20, 1 << 20, 1, flags=DEFERRED) == SUCCESS and used() == 0
handles = [ctypes.c_uint64() for _ in range(2)]
for handle in handles:
    c.check("cuMemCreate", ctypes.byref(handle), 32 * MIB, ctypes.byref(on_device(0)), 0)
assert used() == 64 * MIB
def map(into, handle, at=0, operation=1):
    one = ArrayMapping(resource=into.value, operation=operation, handle=handle.value, devices=1)
    one.subresource[0] = at
    c.check("cuMemMapArrayAsync", ctypes.byref(one), 1, 0)
map(array, handles[0])
map(array, handles[0], at=1)
map(mipmap, handles[1])
for handle in handles:
    c.check("cuMemRelease", handle.value)
assert used() == 64 * MIB, "what is mapped is there"
map(array, handles[0], operation=2)
assert used() == 64 * MIB
destroy()
assert used() == 32 * MIB
c.check("cuMipmappedArrayDestroy", mipmap)
assert used() == 0
"""
    )
