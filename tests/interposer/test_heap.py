"""The heap and the buffer that a context sets aside for its kernels are memory like any other."""

from __future__ import annotations

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container

LIMIT = 256 * MIB
PRELUDE = """
FIFO, HEAP, STACK = 1, 2, 0
c = Cuda()
free = lambda: c.info()[0] // MIB
limit = lambda which, mib: c.call("cuCtxSetLimit", which, mib * MIB)
"""


def test_a_heap_is_charged_as_it_grows_and_shrinks(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    code = """
for mib in (100, 150, 156, 50, 8):
    assert limit(HEAP, mib) == SUCCESS
    print(free())
"""
    assert container.python(PRELUDE + code).split() == ["156", "106", "100", "206", "256"]


def test_a_heap_above_the_limit_is_refused_and_the_old_one_stays(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    code = """
assert limit(HEAP, 200) == SUCCESS
assert limit(FIFO, 57) == OUT_OF_MEMORY
assert limit(HEAP, 257) == OUT_OF_MEMORY
assert free() == 56
assert limit(FIFO, 56) == SUCCESS
assert c.allocate(1)[0] == OUT_OF_MEMORY
assert limit(STACK, 1) == SUCCESS
print(free())
"""
    assert container.python(PRELUDE + code) == "0"


def test_a_heap_ends_with_its_context(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    code = """
context = ctypes.c_void_p()
c.check("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
assert limit(HEAP, 100) == SUCCESS
assert limit(HEAP, 100) == SUCCESS
c.check("cuCtxDestroy_v2", context)
print(free())
"""
    assert container.python(PRELUDE + code) == "256"
