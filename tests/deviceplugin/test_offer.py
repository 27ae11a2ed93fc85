"""A value that is followed."""

from __future__ import annotations

import asyncio

from deviceplugin.offer import Offer
from tests import builders

CARDS = builders.node(gpus=3).gpus


async def test_a_follower_sees_what_is_and_then_each_change() -> None:
    offer = Offer(CARDS[:1])
    seen = offer.follow()
    assert await anext(seen) == CARDS[:1]
    pending = asyncio.ensure_future(anext(seen))
    await asyncio.sleep(0)
    assert not pending.done()
    offer.publish(CARDS[:2])
    assert await pending == CARDS[:2]
    await seen.aclose()


async def test_a_slow_follower_sees_only_the_newest() -> None:
    offer = Offer()
    seen = offer.follow()
    await anext(seen)
    offer.publish(CARDS[:1])
    offer.publish(CARDS[:2])
    assert await anext(seen) == CARDS[:2]
    pending = asyncio.ensure_future(anext(seen))
    await asyncio.sleep(0)
    offer.publish(CARDS[:2])  # no news
    await asyncio.sleep(0)
    assert not pending.done()
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    await seen.aclose()
