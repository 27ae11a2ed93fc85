"""Long work lets a review be answered after one piece, and not after several."""

from __future__ import annotations

import asyncio
import time

from tests.webhook.laws.virtual_loop import VirtualLoop
from webhook.controllers import pacing

ROUNDS = 8  # of the event loop, that an answer takes


def piece_of_work() -> None:
    time.sleep(pacing.WORK_SECONDS)


async def test_review_waits_for_at_most_one_piece_of_work() -> None:
    pieces = 0

    async def work() -> None:
        nonlocal pieces
        while True:
            pieces += 1
            piece_of_work()
            await pacing.let_others_run()

    async def answer() -> int:
        before = pieces
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        return pieces - before

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    waited = [await answer() for _ in range(20)]
    working.cancel()
    assert sorted(waited)[len(waited) * 3 // 4] <= 1  # another one comes in where the machine stood still


def test_short_work_pauses_once() -> None:
    rests: list[float | None] = []

    def pass_time(seconds: float | None) -> None:
        rests.append(seconds)
        loop.advance(seconds or 0.0)

    async def work() -> None:
        for _ in range(100):
            await pacing.let_others_run()

    loop = VirtualLoop(pass_time)
    loop.run_until_complete(work())
    loop.close()
    assert len(rests) == 1
