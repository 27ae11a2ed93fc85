from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from gpushare.daemon import lifecycle

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


async def test_objects_read_at_startup_are_excluded_from_collection() -> None:
    ready = asyncio.Event()
    task = asyncio.create_task(lifecycle.freeze_objects_when_ready(_set(ready)))
    await asyncio.sleep(0)
    before = gc.get_freeze_count()
    collections = gc.get_stats()[2]["collections"]
    read: list[list[object]] = [[[]] for _ in range(1000)]
    ready.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert gc.get_freeze_count() >= before + len(read)
    assert gc.get_stats()[2]["collections"] == collections, "nobody looks through what was read"
    assert gc.get_threshold() == lifecycle.GC_THRESHOLDS
    assert not task.done()
    task.cancel()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def test_garbage_is_still_collected() -> None:
    lifecycle.freeze_objects()
    loop: list[object] = []
    loop.append(loop)
    del loop
    assert gc.collect() >= 1
