"""A program that destroys a pool before its stream frees the pool's memory."""

from __future__ import annotations

import ctypes

from tests.deviceplugin.audit.programs.asked import answer
from tests.deviceplugin.audit.programs.exporting import PIECE, Exporter
from tests.interposer.cuda_client import SUCCESS, on_device


class Destroyer(Exporter):
    """A client whose stream waits until the host sets a word."""

    def __init__(self) -> None:
        super().__init__()
        self.word = self.made("cuMemHostAlloc", 8, 0)
        self.value = ctypes.c_uint32.from_address(self.word.value or 0)
        self.value.value = 0
        self.stream = self.made("cuStreamCreate", 1)
        self.blocks: list[int] = []

    def hold(self) -> None:
        self.value.value = 0
        self.check("cuStreamWaitValue32_v2", self.stream, self.word, 1, 1)

    def let_on(self) -> None:
        self.value.value = 1
        self.check("cuStreamSynchronize", self.stream)

    def room(self) -> int:
        """Return how many pieces can be created, without waiting for the stream to free memory."""
        taken = []
        while (creation := self.create())[0] == SUCCESS:
            taken.append(creation[1])
        for handle in taken:
            self.check("cuMemRelease", handle)
        return len(taken)

    def pool(self, pieces: int) -> ctypes.c_void_p:
        """Create a pool and allocate so many pieces from it; the work is complete on return."""
        pool = self.made("cuMemPoolCreate", ctypes.byref(on_device(0)))
        result, block = self.allocate(pieces * PIECE, "cuMemAllocFromPoolAsync", pool, self.stream)
        assert result == SUCCESS, result
        self.check("cuStreamSynchronize", self.stream)
        self.blocks.append(block)
        return pool

    def free_and_destroy(self, pool: ctypes.c_void_p) -> None:
        self.check("cuMemFreeAsync", self.blocks.pop(), self.stream)
        self.check("cuMemPoolDestroy", pool)

    def destroy_and_free(self, pool: ctypes.c_void_p) -> None:
        self.check("cuMemPoolDestroy", pool)
        self.check("cuMemFreeAsync", self.blocks.pop(), self.stream)


def answers() -> None:
    answer(Destroyer(), PIECE=PIECE)
