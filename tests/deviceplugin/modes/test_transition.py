"""No GPU in use is ever changed, whatever happens in between; and what is wanted comes about."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from deviceplugin.modes import transition

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
gpus = st.sampled_from(UUIDS)
assignments = st.sampled_from(("exclusive", "time-slicing 4", "mps 2", "fractional"))


def test_a_gpu_is_closed_before_anybody_is_asked_who_uses_it() -> None:
    planned = transition.plan({"a": "x"}, {"a": "y"}, closed=frozenset(), users={})
    assert planned.closed == {"a"}
    assert not planned.change


def test_one_that_is_closed_and_idle_is_changed() -> None:
    assert transition.plan({"a": "x"}, {"a": "y"}, closed={"a"}, users={}).change == {"a": "y"}


def test_one_in_use_waits_for_those_who_use_it() -> None:
    planned = transition.plan({"a": "x"}, {"a": "y"}, closed={"a"}, users={"a": ("pod ml/train",)})
    assert not planned.change
    assert planned.waiting == {"a": ("pod ml/train",)}


def test_one_that_is_wanted_as_it_is_opens_again() -> None:
    assert not transition.plan({"a": "x"}, {"a": "x"}, closed={"a"}, users={"a": ("pod ml/train",)}).closed


def test_one_that_nobody_spoke_of_is_left_alone() -> None:
    assert not transition.plan({"a": "x"}, {}, closed={"a"}, users={}).closed


def test_one_that_somebody_has_changed_is_closed_and_set_right_whoever_uses_it() -> None:
    users = {"a": ("pod ml/train",)}
    first = transition.plan({"a": "x"}, {"a": "x"}, closed=frozenset(), users={}, amiss={"a"})
    assert (first.closed, first.right, first.change) == ({"a"}, frozenset(), {})
    second = transition.plan({"a": "x"}, {"a": "x"}, closed={"a"}, users=users, amiss={"a"})
    assert (second.closed, second.right, second.change) == ({"a"}, {"a"}, {})
    # What it is to become something else for waits for those who use it.
    assert not transition.plan({"a": "x"}, {"a": "y"}, closed={"a"}, users=users, amiss={"a"}).right


class Node(stateful.RuleBasedStateMachine):
    """An agent that may die at any moment, and pods that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.present: dict[str, str | None] = dict.fromkeys(UUIDS, "exclusive")  # kept on disk
        self.wanted = dict.fromkeys(UUIDS, "exclusive")
        self.pods: dict[str, list[str]] = {uuid: [] for uuid in UUIDS}  # what each was given
        self.closed: frozenset[str] = frozenset()
        self.seen: dict[str, tuple[str, ...]] = {}
        self.asked_with: frozenset[str] = frozenset()
        self.changing: dict[str, str] = {}

    @stateful.rule(uuid=gpus, assignment=assignments)
    def somebody_wants(self, uuid: str, assignment: str) -> None:
        self.wanted[uuid] = assignment

    @stateful.rule(uuid=gpus)
    def a_pod_comes(self, uuid: str) -> None:
        assignment = self.present[uuid]
        if assignment is not None and uuid not in self.closed:
            self.pods[uuid].append(assignment)

    @stateful.rule(uuid=gpus)
    def a_pod_ends(self, uuid: str) -> None:
        if self.pods[uuid]:
            self.pods[uuid].pop()

    @stateful.rule()
    def it_looks_who_is_there(self) -> None:
        self.seen = {uuid: tuple(pods) for uuid, pods in self.pods.items() if pods}
        self.asked_with = self.closed

    @stateful.rule()
    def it_plans(self) -> None:
        planned = transition.plan(self.present, self.wanted, closed=self.asked_with & self.closed, users=self.seen)
        self.closed = planned.closed
        self.asked_with &= planned.closed
        for uuid in planned.change:
            self.present[uuid] = None
            self.changing[uuid] = planned.change[uuid]

    @stateful.rule(uuid=gpus)
    def it_has_set_up(self, uuid: str) -> None:
        if uuid in self.changing:
            self.present[uuid] = self.changing.pop(uuid)

    @stateful.rule()
    def it_dies(self) -> None:
        # A new process closes what differs before it serves anything.
        self.seen, self.asked_with, self.changing = {}, frozenset(), {}
        self.closed = transition.plan(self.present, self.wanted, closed=frozenset(), users={}).closed

    @stateful.invariant()
    def every_pod_has_what_it_was_given(self) -> None:
        for uuid, pods in self.pods.items():
            assert all(assignment == self.present[uuid] for assignment in pods)

    def teardown(self) -> None:
        self.pods = {uuid: [] for uuid in UUIDS}
        for _ in range(3):
            self.it_looks_who_is_there()
            self.it_plans()
            for uuid in list(self.changing):
                self.it_has_set_up(uuid)
        assert self.present == self.wanted


TestNode = pytest.mark.slow(Node.TestCase)
TestNode.settings = hypothesis.settings(max_examples=60, stateful_step_count=30)
