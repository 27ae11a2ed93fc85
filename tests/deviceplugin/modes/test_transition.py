"""A GPU in use never changes its mode, even across crashes of the agent, and unused GPUs reach the wanted mode."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from deviceplugin.modes import transition

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
gpus = st.sampled_from(UUIDS)
assignments = st.sampled_from(("exclusive", "time-slicing 4", "mps 2", "fractional"))


def test_a_gpu_is_closed_before_its_users_are_determined() -> None:
    planned = transition.plan({"a": "x"}, {"a": "y"}, closed=frozenset(), users={})
    assert planned.closed == {"a"}
    assert not planned.change


def test_a_closed_gpu_without_users_is_changed() -> None:
    assert transition.plan({"a": "x"}, {"a": "y"}, closed={"a"}, users={}).change == {"a": "y"}


def test_a_closed_gpu_in_use_waits_for_its_users() -> None:
    planned = transition.plan({"a": "x"}, {"a": "y"}, closed={"a"}, users={"a": ("pod ml/train",)})
    assert not planned.change
    assert planned.waiting == {"a": ("pod ml/train",)}


def test_a_gpu_whose_mode_is_wanted_again_opens() -> None:
    assert not transition.plan({"a": "x"}, {"a": "x"}, closed={"a"}, users={"a": ("pod ml/train",)}).closed


def test_a_gpu_without_a_configured_mode_stays_as_it_is() -> None:
    assert not transition.plan({"a": "x"}, {}, closed={"a"}, users={}).closed


def test_a_drifted_gpu_is_closed_and_then_repaired_even_in_use() -> None:
    users = {"a": ("pod ml/train",)}
    first = transition.plan({"a": "x"}, {"a": "x"}, closed=frozenset(), users={}, drifted={"a"})
    assert (first.closed, first.repair, first.change) == ({"a"}, frozenset(), {})
    second = transition.plan({"a": "x"}, {"a": "x"}, closed={"a"}, users=users, drifted={"a"})
    assert (second.closed, second.repair, second.change) == ({"a"}, {"a"}, {})
    # A GPU that needs another mode is changed, not repaired.
    assert not transition.plan({"a": "x"}, {"a": "y"}, closed={"a"}, users=users, drifted={"a"}).repair


class Node(stateful.RuleBasedStateMachine):
    """An agent that can crash at any moment, and pods that start and end."""

    def __init__(self) -> None:
        super().__init__()
        self.present: dict[str, str | None] = dict.fromkeys(UUIDS, "exclusive")  # on disk
        self.wanted = dict.fromkeys(UUIDS, "exclusive")
        self.pods: dict[str, list[str]] = {uuid: [] for uuid in UUIDS}  # the assignment that each pod got
        self.closed: frozenset[str] = frozenset()
        self.users: dict[str, tuple[str, ...]] = {}
        self.closed_before: frozenset[str] = frozenset()
        self.changing: dict[str, str] = {}

    @stateful.rule(uuid=gpus, assignment=assignments)
    def the_configuration_changes(self, uuid: str, assignment: str) -> None:
        self.wanted[uuid] = assignment

    @stateful.rule(uuid=gpus)
    def a_pod_starts(self, uuid: str) -> None:
        assignment = self.present[uuid]
        if assignment is not None and uuid not in self.closed:
            self.pods[uuid].append(assignment)

    @stateful.rule(uuid=gpus)
    def a_pod_ends(self, uuid: str) -> None:
        if self.pods[uuid]:
            self.pods[uuid].pop()

    @stateful.rule()
    def the_agent_finds_users(self) -> None:
        self.users = {uuid: tuple(pods) for uuid, pods in self.pods.items() if pods}
        self.closed_before = self.closed

    @stateful.rule()
    def the_agent_plans(self) -> None:
        planned = transition.plan(self.present, self.wanted, closed=self.closed_before & self.closed, users=self.users)
        self.closed = planned.closed
        self.closed_before &= planned.closed
        for uuid in planned.change:
            self.present[uuid] = None
            self.changing[uuid] = planned.change[uuid]

    @stateful.rule(uuid=gpus)
    def the_agent_sets_up(self, uuid: str) -> None:
        if uuid in self.changing:
            self.present[uuid] = self.changing.pop(uuid)

    @stateful.rule()
    def the_agent_crashes(self) -> None:
        # The next agent closes differing GPUs before it serves anything.
        self.users, self.closed_before, self.changing = {}, frozenset(), {}
        self.closed = transition.plan(self.present, self.wanted, closed=frozenset(), users={}).closed

    @stateful.invariant()
    def every_pod_keeps_its_assignment(self) -> None:
        for uuid, pods in self.pods.items():
            assert all(assignment == self.present[uuid] for assignment in pods)

    def teardown(self) -> None:
        self.pods = {uuid: [] for uuid in UUIDS}
        for _ in range(3):
            self.the_agent_finds_users()
            self.the_agent_plans()
            for uuid in list(self.changing):
                self.the_agent_sets_up(uuid)
        assert self.present == self.wanted


TestNode = pytest.mark.slow(Node.TestCase)
TestNode.settings = hypothesis.settings(max_examples=60, stateful_step_count=30)
