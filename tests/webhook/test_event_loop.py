"""Who has much to do lets a review be answered after one piece of it, and not after several."""

from __future__ import annotations

import asyncio

from webhook import event_loop

ROUNDS = 8  # of the event loop, that an answer takes


async def test_an_answer_waits_for_one_piece_of_work() -> None:
    pieces = 0

    async def work() -> None:
        nonlocal pieces
        while True:
            pieces += 1
            await event_loop.let_others_run()

    async def answer() -> int:
        before = pieces
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        return pieces - before

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    waited = [await answer() for _ in range(5)]
    working.cancel()
    assert max(waited) <= 1
