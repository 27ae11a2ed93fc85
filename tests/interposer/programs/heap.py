"""Programs that set the size of a context's heap and printf buffer."""

from __future__ import annotations

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda

FIFO, HEAP, STACK = 1, 2, 0


class Heaps(Cuda):
    """A client that sets limits of a context, in MiB."""

    def free_mib(self) -> int:
        return self.info()[0] // MIB

    def limit(self, which: int, mib: int) -> int:
        return self.call("cuCtxSetLimit", which, mib * MIB)


def grows_and_shrinks() -> None:
    c = Heaps()
    for mib in (100, 150, 156, 50, 8):
        assert c.limit(HEAP, mib) == SUCCESS
        print(c.free_mib())


def above_the_limit() -> None:
    c = Heaps()
    assert c.limit(HEAP, 200) == SUCCESS
    assert c.limit(FIFO, 57) == OUT_OF_MEMORY
    assert c.limit(HEAP, 257) == OUT_OF_MEMORY
    assert c.free_mib() == 56
    assert c.limit(FIFO, 56) == SUCCESS
    assert c.allocate(1)[0] == OUT_OF_MEMORY
    assert c.limit(STACK, 1) == SUCCESS
    print(c.free_mib())


def ends_with_its_context() -> None:
    c = Heaps()
    context = c.made("cuCtxCreate_v2", 0, 0)
    assert c.limit(HEAP, 100) == SUCCESS
    assert c.limit(HEAP, 100) == SUCCESS
    c.check("cuCtxDestroy_v2", context)
    print(c.free_mib())
