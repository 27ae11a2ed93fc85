"""A stream waits for a value in memory, a launching thread blocks in the driver, and another thread does something
else.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

from tests.interposer.cuda_client import MIB, SUCCESS, on_device
from tests.interposer.programs.graphing import LIMIT, PTR, Graphs


def is_told_how_much_is_free(c: Graphs, other: PTR, block: int) -> None:
    assert c.info()[1] > 0


def allocates(c: Graphs, other: PTR, block: int) -> None:
    assert c.allocate(40 * MIB)[0] == SUCCESS


def allocates_in_a_stream(c: Graphs, other: PTR, block: int) -> None:
    assert c.allocate(40 * MIB, "cuMemAllocAsync", other)[0] == SUCCESS


def has_pools_trimmed(c: Graphs, other: PTR, block: int) -> None:
    c.allocate(LIMIT)


def waits_for_another_stream(c: Graphs, other: PTR, block: int) -> None:
    c.check("cuMemFreeAsync", block, other)
    c.check("cuStreamSynchronize", other)


def ends_a_pool(c: Graphs, other: PTR, block: int) -> None:
    pool = c.made("cuMemPoolCreate", ctypes.byref(on_device(0)))
    assert c.allocate(MIB, "cuMemAllocFromPoolAsync", pool, other)[0] == SUCCESS
    c.check("cuMemPoolDestroy", pool)


MEANWHILE: dict[str, Callable[[Graphs, PTR, int], None]] = {
    "a query of free memory": is_told_how_much_is_free,
    "an allocation": allocates,
    "a stream-ordered allocation": allocates_in_a_stream,
    "an allocation that trims pools": has_pools_trimmed,
    "a wait for another stream": waits_for_another_stream,
    "the end of a pool": ends_a_pool,
}


def launches_until_no_more_is_taken(meanwhile: str) -> None:
    """Launch until the driver blocks; then another thread does its part before it writes the value."""
    c = Graphs()
    word = c.made("cuMemHostAlloc", 8, 0)
    value = ctypes.c_uint32.from_address(word.value or 0)
    value.value = 0  # new memory has no defined content
    stream, other = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1)
    graph = c.whole(4)
    _, block = c.allocate(MIB, "cuMemAllocAsync", other)
    c.check("cuStreamWaitValue32_v2", stream, word, 1, 1)
    results: list[int] = []
    launching = threading.Thread(target=lambda: results.extend(c.start(graph, stream) for _ in range(2000)))
    launching.start()
    before = -1
    while not results or len(results) != before:
        before = len(results)
        time.sleep(0.3)
    assert 0 < len(results) < 2000, (len(results), set(results))
    MEANWHILE[meanwhile](c, other, block)
    value.value = 1
    launching.join()
    assert set(results) == {0}, results
    c.check("cuStreamSynchronize", stream)
