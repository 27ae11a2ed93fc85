"""Observable values."""

from __future__ import annotations

import asyncio

from deviceplugin.state.node_state import ObservableGpus
from tests import builders

GPUS = builders.node(gpus=3).gpus


async def test_a_follower_sees_the_value_and_then_each_change() -> None:
    observed = ObservableGpus(GPUS[:1])
    seen = observed.follow()
    assert await anext(seen) == GPUS[:1]
    pending = asyncio.ensure_future(anext(seen))
    await asyncio.sleep(0)
    assert not pending.done()
    observed.publish(GPUS[:2])
    assert await pending == GPUS[:2]
    await seen.aclose()


async def test_a_slow_follower_sees_only_the_newest() -> None:
    observed = ObservableGpus()
    seen = observed.follow()
    await anext(seen)
    observed.publish(GPUS[:1])
    observed.publish(GPUS[:2])
    assert await anext(seen) == GPUS[:2]
    pending = asyncio.ensure_future(anext(seen))
    await asyncio.sleep(0)
    observed.publish(GPUS[:2])  # no change
    await asyncio.sleep(0)
    assert not pending.done()
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    await seen.aclose()


def test_an_event_is_set_at_first_and_by_each_change() -> None:
    observed, woken = ObservableGpus(GPUS[:1]), asyncio.Event()
    observed.wake(woken)
    for gpus, is_news in ((GPUS[:1], True), (GPUS[:1], False), (GPUS[:2], True)):
        observed.publish(gpus)
        assert woken.is_set() is is_news
        woken.clear()
