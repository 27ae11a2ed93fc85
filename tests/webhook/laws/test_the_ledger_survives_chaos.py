"""Two replicas of the daemons' own code, through any order of messages and any loss, checked after every step.

A world that breaks a law prints all that happened in it; `story(SEED).run()` repeats it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests import builders
from tests.webhook.laws import stories, users, world
from tests.webhook.laws import test_the_laws_can_be_broken as breaking

pytestmark = pytest.mark.slow

# More of them, for a night: GPUSHARE_LAWS_SEEDS=100000.
SEEDS = int(os.environ.get("GPUSHARE_LAWS_SEEDS", "40"))

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


@pytest.mark.parametrize(
    ("story", "seeds", "breaks"),
    [
        (stories.story, SEEDS, breaking.SAFEGUARDS),
        (stories.without_gpunodes, SEEDS // 2, breaking.WITHOUT_GPUNODES),
        (stories.of_several_kinds, SEEDS // 2, breaking.OF_SEVERAL_KINDS),
    ],
    ids=["in any order of events", "without GPUNodes", "with several kinds of isolation"],
)
def test_laws_hold(story: Callable[[int], world.World], seeds: int, breaks: Mapping[breaking.Break, int]) -> None:
    for seed in sorted({*range(seeds), *breaks.values()}):
        story(seed).run()


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
