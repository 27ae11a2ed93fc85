"""Who has passed over whom, also for a placer that has not been there all the time."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract
from tests import builders
from webhook.placer.backfill import Passes
from webhook.placer.gang import Unit

NOON, LATER, LATEST = (f"2026-01-01T{hour}:00:00Z" for hour in (12, 13, 14))


def one(name: str, created: str, *, priority: int = 0, placed: bool = True) -> dict[str, Any]:
    made = builders.pod(name, request="0.5")
    made["metadata"].update(uid=name, creationTimestamp=created)
    made["spec"]["priority"] = priority
    if placed:
        made["metadata"]["annotations"][contract.ALLOCATION] = f"a-{name}"
    return made


WAITS = one("waits", LATER, priority=1000, placed=False)
UNIT = Unit((WAITS,))


@pytest.mark.parametrize("priority", [0, 1000])
def test_a_placer_that_is_new_counts_who_came_after_the_one_that_waits_and_nobody_older(priority: int) -> None:
    old = [one(f"old-{number}", NOON, priority=priority) for number in range(150)]
    new = [one(f"new-{number}", LATEST, priority=priority) for number in range(3)]
    there = Passes()
    there.count([*old, WAITS], [UNIT])
    assert there.count([*old, *new, WAITS], [UNIT]) == {"waits": 3}
    assert Passes().count([*old, *new, WAITS], [UNIT]) == {"waits": 3}


def test_nobody_older_has_passed_over_one_that_has_just_come() -> None:
    passes = Passes()
    passes.count([], [])
    passes.placed(one("old", NOON))
    assert passes.count([one("older", NOON), WAITS], [UNIT]) == {"waits": 0}


def test_who_is_older_and_less_important_passes_over_one_that_was_seen_to_wait() -> None:
    passes = Passes()
    passes.count([one("old", NOON, placed=False), WAITS], [UNIT])
    assert passes.count([one("old", NOON), WAITS], [UNIT]) == {"waits": 1}
    passes.grew(one("old", NOON))
    assert passes.count([one("old", NOON), WAITS], [UNIT]) == {"waits": 2}


def test_who_is_more_important_passes_nobody_over() -> None:
    passes = Passes()
    passes.count([WAITS], [UNIT])
    assert passes.count([one("urgent", LATEST, priority=2000), WAITS], [UNIT]) == {"waits": 0}
