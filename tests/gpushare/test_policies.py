"""Policies: a cost function gives the same for one GPU and over arrays, and can read the GPU's surroundings."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare import ledger, placement, policies, request
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.placement.fleet import Fleet
from gpushare.policies import POLICIES, Group, Number, Option, Policy
from gpushare.request import Request
from tests import builders
from tests.gpushare.laws import strategies

nodes = st.lists(strategies.gpu_nodes("node-a") | strategies.gpu_nodes("node-b"), min_size=1, max_size=4)


def numa_first(option: Option) -> Number:
    """Fill a NUMA node before using another; within it prefer the fullest GPU."""
    return option.around(Group.NUMA_NODE) * 1000 + option.after.mean


def by_all_around(option: Option) -> Number:
    return 7 * option.around(Group.NODE) + 3 * option.around(Group.LINK_GROUP) - option.before.compute


@pytest.fixture(params=[numa_first, by_all_around], ids=lambda cost: str(cost.__name__))
def one_more(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a policy: a row in the table is all that it takes."""
    monkeypatch.setattr(policies, "POLICIES", {**POLICIES, "one-more": Policy(request.param, "one that is tried")})
    return "one-more"


def fleet_of(*gpunodes: GpuNode) -> Fleet:
    fleet = Fleet()
    for node in gpunodes:
        fleet.update(NodeView.from_node(node))
    return fleet


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes, strategies.requests())
def test_policy_that_reads_around_chooses_the_same_over_arrays(
    one_more: str, gpunodes: list[GpuNode], asked: Request
) -> None:
    asked = dataclasses.replace(asked, policy=one_more)
    fleet = fleet_of(*gpunodes)
    views = sorted(fleet.views(), key=lambda view: view.node.name)
    answer, wanted = fleet.place(asked), placement.place(views, asked)
    assert type(answer) is type(wanted)
    if isinstance(wanted, Placement):
        assert answer == wanted


def test_policy_can_fill_a_numa_node_before_using_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "POLICIES", {**POLICIES, "numa-first": Policy(numa_first, "one that is tried")})
    gpus = tuple(builders.gpu(index, node="node-a", numa_node=index % 2) for index in range(4))
    node = GpuNode("node-a", gpus, (builders.allocation("a", gpus[0].uuid, request=60, memory_gib=40),))
    got: list[str] = []
    for number in range(3):
        asked = dataclasses.replace(request.parse(builders.pod(request="0.5")), policy="numa-first")
        answer = fleet_of(node).place(asked)
        assert isinstance(answer, Placement)
        entry = answer.allocation(asked, allocation_id=f"p{number}", pod=PodRef("d"), reserved_until=None)
        node = ledger.reserve(node, entry)
        got += entry.gpu_uuids
    assert got == [gpus[2].uuid, gpus[2].uuid, gpus[1].uuid]


def test_every_policy_states_its_aim() -> None:
    assert policies.DEFAULT in POLICIES
    assert all(policy.aim for policy in POLICIES.values())
