"""The order of turns among namespaces, and the number of tries of each."""

from __future__ import annotations

import collections
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import builders
from webhook.controllers.gated_pods.fairness import Fairness
from webhook.controllers.gated_pods.waiting_units import Unit
from webhook.pods.stored_pod import Pod


def unit(namespace: str, number: int, *, priority: int = 0) -> Unit:
    made: dict[str, Any] = builders.pod(f"p{number:04d}", namespace=namespace, request="1")
    made["metadata"].update(uid=f"{namespace}-{number}", creationTimestamp=f"2026-01-01T00:{number:04d}Z")
    made["spec"]["priority"] = priority
    return Unit((Pod.from_manifest(made),))


def names(units: list[Unit]) -> list[str]:
    return [unit.members[0].ref.uid for unit in units]


def test_namespaces_take_turns_oldest_units_first() -> None:
    units = [unit("a", 1), unit("a", 2), unit("a", 3), unit("b", 4), unit("c", 5), unit("b", 6)]
    assert names(Fairness().begin(units)) == ["a-1", "b-4", "c-5", "a-2", "b-6", "a-3"]


def test_higher_priority_comes_before_all_turns() -> None:
    units = [unit("a", 3, priority=5), unit("a", 4, priority=5), unit("b", 1), unit("a", 2)]
    assert names(Fairness().begin(units)) == ["a-3", "a-4", "b-1", "a-2"]


def round_of(fair: Fairness, units: list[Unit]) -> list[str]:
    """Do a round in which no pod fits; return the pods that were tried."""
    tried = []
    for candidate in fair.begin(units):
        if fair.may_try(candidate):
            tried.append(candidate)
            fair.count_failed_try(candidate)
    return names(tried)


def test_oldest_units_are_tried_each_round_and_others_rotate() -> None:
    fair, units = Fairness(max_failed_tries=4, max_visits=100), [unit("a", number) for number in range(8)]
    rounds = [round_of(fair, [*units, unit("b", 99)]) for _ in range(4)]
    assert [[name for name in tried_names if name.startswith("a")] for tried_names in rounds] == [
        ["a-0", "a-1", "a-2", "a-3"],
        ["a-0", "a-1", "a-4", "a-5"],
        ["a-0", "a-1", "a-6", "a-7"],
        ["a-0", "a-1", "a-2", "a-3"],
    ]
    assert all("b-99" in tried_names[:2] for tried_names in rounds)


def test_unit_like_a_failed_one_costs_a_visit_and_no_try() -> None:
    fair, units = Fairness(max_failed_tries=2, max_visits=5), [unit("a", number) for number in range(9)]
    assert sum(fair.may_try(candidate) for candidate in fair.begin(units)) == 5


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=40), st.integers(2, 10))
def test_law_every_unit_has_a_turn_and_is_tried_eventually(asked: list[tuple[str, int]], tries: int) -> None:
    units = [unit(namespace, number, priority=priority) for number, (namespace, priority) in enumerate(asked)]
    units.sort(key=lambda candidate: candidate.order)
    fair = Fairness(max_failed_tries=tries)
    tried: collections.Counter[str] = collections.Counter()
    for _ in range(40):
        candidates = fair.begin(units)
        assert sorted(names(candidates)) == sorted(names(units))
        first = [candidate for candidate in candidates if len(asked) <= tries]
        assert [candidate.order[0] for candidate in first] == sorted(candidate.order[0] for candidate in first)
        for candidate in candidates:
            if fair.may_try(candidate):
                tried.update(names([candidate]))
                fair.count_failed_try(candidate)
    assert set(tried) == set(names(units))
    assert all(unit.namespace in "abc" for unit in units)
