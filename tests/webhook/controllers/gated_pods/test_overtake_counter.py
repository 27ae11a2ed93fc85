"""The number of pods that overtake a waiting pod, also for a placer that has just started."""

from __future__ import annotations

import pytest

from gpushare import contract
from tests import builders
from webhook.controllers.gated_pods.fairness import OvertakeCounter
from webhook.controllers.gated_pods.waiting_units import PodIndex, Unit
from webhook.pods.stored_pod import Pod

NOON, LATER, LATEST = (f"2026-01-01T{hour}:00:00Z" for hour in (12, 13, 14))


def one(name: str, created: str, *, priority: int = 0, placed: bool = True, gated: bool = False) -> Pod:
    made = builders.pod(name, request="0.5")
    made["metadata"].update(uid=name, creationTimestamp=created)
    gates = [{"name": contract.SCHEDULING_GATE}] if gated else []
    made["spec"].update(priority=priority, schedulingGates=gates)
    if placed:
        made["metadata"]["annotations"][contract.ALLOCATION] = f"a-{name}"
    return Pod.from_manifest(made)


WAITS = one("waits", LATER, priority=1000, placed=False)
UNIT = Unit((WAITS,))


@pytest.mark.parametrize("priority", [0, 1000])
def test_new_placer_counts_only_pods_created_after_the_waiting_one(priority: int) -> None:
    old = [one(f"old-{number}", NOON, priority=priority) for number in range(150)]
    new = [one(f"new-{number}", LATEST, priority=priority) for number in range(3)]
    passes, index = OvertakeCounter(), PodIndex([*old, WAITS])
    passes.count(index, [UNIT])
    for came in new:
        index.update(None, came)
    assert passes.count(index, [UNIT]) == {"waits": 3}
    assert OvertakeCounter().count(PodIndex([*old, *new, WAITS]), [UNIT]) == {"waits": 3}


def test_older_pods_do_not_count_as_overtaking() -> None:
    passes, index = OvertakeCounter(), PodIndex()
    passes.count(index, [])
    passes.placed(one("old", NOON))
    index.update(None, one("older", NOON))
    index.update(None, WAITS)
    assert passes.count(index, [UNIT]) == {"waits": 0}


def test_older_lower_priority_pod_counts_as_overtaking_once_seen() -> None:
    before, after = one("old", NOON, placed=False), one("old", NOON)
    passes, index = OvertakeCounter(), PodIndex([before, WAITS])
    passes.count(index, [UNIT])
    index.update(before, after)
    assert passes.count(index, [UNIT]) == {"waits": 1}
    passes.grew(after)
    assert passes.count(index, [UNIT]) == {"waits": 2}


def test_higher_priority_does_not_count_as_overtaking() -> None:
    passes, index = OvertakeCounter(), PodIndex([WAITS])
    passes.count(index, [UNIT])
    index.update(None, one("urgent", LATEST, priority=2000))
    assert passes.count(index, [UNIT]) == {"waits": 0}


@pytest.mark.parametrize("shown", ["before the count", "after it", "never"])
def test_placed_pod_counts_once(shown: str) -> None:
    before, after = one("small", LATEST, placed=False, gated=True), one("small", LATEST)
    passes, index = OvertakeCounter(), PodIndex([before, WAITS])
    passes.count(index, [UNIT])
    passes.placed(before)
    if shown == "before the count":
        index.update(before, after)
    assert passes.count(index, [UNIT]) == {"waits": 1}
    passes.placed(before)  # ungated twice, because the cache does not show it yet
    if shown == "after it":
        index.update(before, after)
    elif shown == "never":
        index.update(before, None)
    assert passes.count(index, [UNIT]) == {"waits": 1}
    assert passes.count(index, [UNIT]) == {"waits": 1}
