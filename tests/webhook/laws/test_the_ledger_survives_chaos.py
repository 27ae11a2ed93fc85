"""Two replicas of the daemons' own code, through any order of messages and any loss, checked after every step.

A world that breaks a law prints all that happened in it; `story(SEED).run()` repeats it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests import builders
from tests.webhook.laws import stories, users, world

pytestmark = pytest.mark.slow

# More of them, for a night: GPUSHARE_LAWS_SEEDS=100000.
SEEDS = int(os.environ.get("GPUSHARE_LAWS_SEEDS", "200"))
CHUNKS = 4

ANY_ORDER = frozenset({"go", "time", "lose", "fail", "crash"})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log errors only, because everything fails in these worlds."""
    loggers = [logging.getLogger(name) for name in ("webhook", "gpushare")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for muted_logger, level in zip(loggers, before, strict=True):
        muted_logger.setLevel(level)


@pytest.mark.parametrize("chunk", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, CHUNKS))])
def test_laws_hold_in_any_order_of_events(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        stories.story(seed).run()


def test_in_flight_share_survives_its_gpunode() -> None:
    for seed in range(SEEDS // 4):
        stories.without_gpunodes(seed).run()


def test_kinds_of_isolation_never_meet_on_a_gpu() -> None:
    for seed in range(SEEDS // 4):
        stories.of_several_kinds(seed).run()


def test_interruption_at_any_step_breaks_no_law() -> None:
    asks = [users.Ask(builders.pod(name, request="1")) for name in ("first", "second")]
    count = 0
    for turns, changed in stories.single_turns(asks, kinds=ANY_ORDER, most_steps=45, gpus=1):
        try:
            changed.run()
        except world.LawBrokenError as error:
            raise AssertionError(f"with {turns}:\n{error}") from None
        count += 1
    assert count > 100


def test_same_seed_gives_the_same_events() -> None:
    first, second = stories.story(7), stories.story(7)
    first.run()
    second.run()
    assert first.happened == second.happened
