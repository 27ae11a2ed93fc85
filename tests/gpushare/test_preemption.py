"""The pods that have to go so that a pod fits, and the node where least is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpushare import preemption
from gpushare.preemption import Victim, Victims
from tests import builders

GPUS = 3


def victim(name: str, gpu: int, percent: int, *, priority: int = 0, created: str = "2026-01-01T00:00:00Z") -> Victim:
    made = builders.allocation(f"a-{name}", f"GPU-{gpu}", request=percent)
    return Victim(dataclasses.replace(made, pod=dataclasses.replace(made.pod, name=name)), priority, created)


def room(candidates: Victims, gone: Victims) -> int:
    """Return the most compute that is free on one GPU without these."""
    used = [
        sum(
            other.allocation.shares[0].request_percent
            for other in candidates
            if other not in gone and other.allocation.gpu_uuids == (f"GPU-{gpu}",)
        )
        for gpu in range(GPUS)
    ]
    return 100 - min(used)


def fewest(candidates: Sequence[Victim], fits: Callable[[Victims], bool]) -> Victims | None:
    async def fit(gone: Victims) -> bool:
        return fits(gone)

    return asyncio.run(preemption.fewest(candidates, fit))


def chosen(*candidates: Victim, percent: int) -> list[str] | None:
    found = fewest(candidates, lambda gone: room(candidates, gone) >= percent)
    return None if found is None else sorted(each.allocation.pod.name for each in found)


def full() -> list[Victim]:
    return [victim(f"full-{gpu}", gpu, 100, priority=9) for gpu in range(GPUS)]


def test_no_pod_goes_if_there_is_room_and_none_if_it_would_not_help() -> None:
    assert chosen(victim("a", 0, 50), percent=50) == []
    assert fewest([victim("a", 0, 50)], lambda _: False) is None


def test_the_lowest_priority_goes_then_the_fewest_then_the_youngest() -> None:
    _, _, third = full()
    quarters = [victim(f"q{number}", 0, 25) for number in range(4)]
    assert chosen(*quarters, victim("whole", 1, 100), third, percent=100) == ["whole"]
    assert chosen(*quarters, victim("whole", 1, 100, priority=1), third, percent=100) == ["q0", "q1", "q2", "q3"]
    old, young = victim("old", 0, 100), victim("young", 1, 100, created="2026-01-02T00:00:00Z")
    assert chosen(old, young, third, percent=100) == ["young"]


def test_the_node_with_the_smallest_loss() -> None:
    low, high = victim("low", 0, 100), victim("high", 0, 100, priority=5)
    young = victim("young", 0, 100, created="2026-01-02T00:00:00Z")
    assert preemption.least_lost({"a": (high,), "b": (low, low)}) == "b"  # the lowest of the highest priorities
    assert preemption.least_lost({"a": (low, low), "b": (low,)}) == "b"
    assert preemption.least_lost({"a": (low,), "b": (young,)}) == "b"
    assert preemption.least_lost({"b": (low,), "a": (low,)}) == "a"
    below = victim("below", 0, 100, priority=-(2**31))
    assert preemption.least_lost({"a": (below, low), "b": (low,)}) == "b"  # the lowest priority counts as a pod too


def test_pods_are_named_in_a_sentence() -> None:
    four = [victim(name, 0, 10) for name in "abcde"]
    assert preemption.names(four[:2]).endswith("/a, default/b")
    assert preemption.names(four).endswith("/c and 2 others")


CANDIDATES = st.lists(st.tuples(st.integers(0, GPUS - 1), st.integers(1, 4), st.integers(0, 3)), max_size=8)


@given(CANDIDATES, st.integers(1, 100))
def test_law_the_pod_fits_and_none_of_the_victims_could_stay(asks: list[tuple[int, int, int]], percent: int) -> None:
    candidates: list[Victim] = []
    for number, (gpu, quarters, priority) in enumerate(asks):
        made = victim(f"v{number}", gpu, 25 * quarters, priority=priority)
        if room(tuple(held for held in (*candidates, made) if held.allocation.gpu_uuids == (f"GPU-{gpu}",)), ()) >= 0:
            candidates.append(made)
    everything = tuple(candidates)
    found = fewest(everything, lambda gone: room(everything, gone) >= percent)
    assert found is not None
    assert room(everything, found) >= percent
    for fewer in itertools.combinations(found, max(0, len(found) - 1)):
        assert not found or room(everything, fewer) < percent
