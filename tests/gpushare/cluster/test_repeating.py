from __future__ import annotations

import asyncio
import logging

import pytest

from gpushare.cluster import api_errors, retrying


async def test_a_failed_step_is_retried_and_a_successful_one_waits_for_a_wakeup(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE_SECONDS", 0.001)
    woken, done, tries = asyncio.Event(), asyncio.Event(), 0

    async def step() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise api_errors.ClusterError("no answer")
        done.set()

    logger = logging.getLogger("test")
    task = asyncio.create_task(retrying.run_on_wakeup(woken, step, trouble="Could not write", logger=logger))
    await asyncio.sleep(0)
    assert tries == 0
    woken.set()
    async with asyncio.timeout(10):
        await done.wait()
    assert [record.getMessage() for record in caplog.records] == ["Could not write"] * 2
    done.clear()
    woken.set()
    async with asyncio.timeout(10):
        await done.wait()
    assert tries == 4
    task.cancel()
