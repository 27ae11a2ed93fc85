"""The fleet gives the same results as placement node by node, after any sequence of changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import ledger, placement, policies
from gpushare.allocation import Memory, PodRef, Share
from gpushare.gpunode import GpuNode
from gpushare.mix import Host
from gpushare.placement import NodeView, Placement, gpu_selection
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Grid, Room
from gpushare.placement.request_key import RequestKey
from gpushare.placement.scoring import Scoring
from gpushare.refusal import Refusal
from gpushare.request import Constraints, Demand, Request
from tests import builders
from tests.gpushare.laws import strategies

pytestmark = pytest.mark.slow

NAMES = ("node-a", "node-b", "node-c", "node-d")
nodes = st.sampled_from(NAMES).flatmap(strategies.gpu_nodes)
uuids = st.lists(st.sampled_from([f"GPU-{name}-{index}" for name in NAMES for index in range(3)]), max_size=3).map(
    tuple
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request as in the other laws, optionally by UUID."""
    request = draw(strategies.requests())
    constraints = dataclasses.replace(
        request.constraints,
        uuids=draw(st.just(()) | uuids),
        not_uuids=draw(st.just(()) | uuids),
        min_memory_bytes=draw(st.sampled_from([0, 0, 40 * strategies.GIB])),
        min_compute_capability=draw(st.sampled_from([(0, 0), (8, 9)])),
    )
    return dataclasses.replace(request, constraints=constraints)


unfit_nodes = st.frozensets(st.sampled_from(NAMES), max_size=2)


def rejecting(names: frozenset[str]):  # type: ignore[no-untyped-def]
    return lambda name: "is not ready" if name in names else None


def by_name(fleet: Fleet) -> list[NodeView]:
    return sorted(fleet.views(), key=lambda view: view.node.name)


@settings(max_examples=200)
@given(st.lists(nodes, max_size=6), requests(), unfit_nodes)
def test_fleet_places_the_same_pods_and_refuses_with_the_same_sentence(
    gpu_nodes: list[GpuNode], request: Request, unfit: frozenset[str]
) -> None:
    fleet = Fleet()
    for node in gpu_nodes:
        fleet.update(NodeView.from_node(node))
    answer = fleet.place(request, unfit=rejecting(unfit))
    wanted = placement.place(by_name(fleet), request, unfit=rejecting(unfit))
    assert type(answer) is type(wanted), (answer, wanted)
    if isinstance(answer, Refusal):
        assert answer.reason == str(wanted)
        return
    view = next(view for view in fleet.views() if view.node.name == answer.node)
    alone = placement.place([view], request)
    assert isinstance(alone, Placement)
    assert answer.node not in unfit
    entry = answer.allocation(request, allocation_id="new", pod=PodRef("default"), reserved_until=None)
    ledger.reserve(view.node, entry)


@settings(max_examples=100)
@given(st.lists(nodes, min_size=1, max_size=4), requests())
def test_every_other_policy_chooses_the_same_gpus(gpu_nodes: list[GpuNode], request: Request) -> None:
    fleet = Fleet()
    for node in gpu_nodes:
        fleet.update(NodeView.from_node(node))
    for policy in sorted(policies.POLICIES.keys() - {policies.DEFAULT}):
        asked = dataclasses.replace(request, policy=policy)
        answer, wanted = fleet.place(asked), placement.place(by_name(fleet), asked)
        if isinstance(answer, Placement) and isinstance(wanted, Placement):
            assert answer == wanted


step = st.one_of(
    nodes,
    nodes,
    st.sampled_from(NAMES),
    requests(),
    st.tuples(st.sampled_from(NAMES), st.integers(0, 64), st.integers(0, 64)),
)


@settings(max_examples=100)
@given(st.lists(step, max_size=20), requests(), st.integers(0, 32), st.integers(0, 32))
def test_caches_change_no_answer(
    steps: list[GpuNode | str | Request | tuple[str, int, int]], last: Request, cpus: int, gib: int
) -> None:
    kept = Fleet()
    rooms: dict[str, Room] = {}
    host = Host(cpus * 1000, gib * strategies.GIB)
    for action in steps:
        match action:
            case GpuNode():
                kept.update(NodeView.from_node(action))
                rooms.setdefault(action.name, Room())
            case str():
                kept.remove(action)
                rooms.pop(action, None)
            case (name, cpu, memory):
                if name in rooms:
                    rooms[name] = Room(cpu * 1000, memory * strategies.GIB)
                    kept.update(next(view for view in kept.views() if view.node.name == name), room=rooms[name])
            case Request():
                kept.place(action, host=host)
    fresh = Fleet()
    for view in kept.views():
        fresh.update(view, room=rooms[view.node.name])
    for request in (last, *(step for step in steps if isinstance(step, Request))):
        for policy in sorted(policies.POLICIES):
            asked = dataclasses.replace(request, policy=policy)
            assert str(kept.place(asked, host=host)) == str(fresh.place(asked, host=host))


@settings(max_examples=100)
@given(strategies.gpu_nodes(), requests())
def test_place_on_uses_the_given_node_only(node: GpuNode, request: Request) -> None:
    fleet = Fleet()
    fleet.update(NodeView.from_node(dataclasses.replace(node, allocations=())))
    answer = fleet.place_on(NodeView.from_node(node), request)
    assert type(answer) is type(placement.place([NodeView.from_node(node)], request))
    if isinstance(answer, Placement):
        entry = answer.allocation(request, allocation_id="new", pod=PodRef("default"), reserved_until=None)
        ledger.reserve(node, entry)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(strategies.gpu_nodes("node-a") | strategies.gpu_nodes("node-b"), min_size=1, max_size=3),
    st.lists(requests() | st.integers(0, 20), max_size=25),
)
def test_fleet_never_overcommits(gpu_nodes: list[GpuNode], steps: list[Request | int]) -> None:
    fleet = Fleet()
    ledgers = {node.name: dataclasses.replace(node, allocations=()) for node in gpu_nodes}
    for node in ledgers.values():
        fleet.update(NodeView.from_node(node))
    asked: list[Request] = []
    placed: list[tuple[str, str]] = []
    for number, action in enumerate(steps):
        if isinstance(action, int):
            if not placed:
                continue
            name, identity = placed.pop(action % len(placed))
            ledgers[name] = ledger.release(ledgers[name], [identity])
        else:
            asked.append(action)
            answer = fleet.place(action)
            if isinstance(answer, Refusal):
                continue
            name = answer.node
            entry = answer.allocation(action, allocation_id=f"a{number}", pod=PodRef("default"), reserved_until=None)
            ledgers[name] = ledger.reserve(ledgers[name], entry)
            placed.append((name, entry.id))
        assert not ledger.violations(ledgers[name])
        fleet.update(NodeView.from_node(ledgers[name]))
        fleet.learn(builders.mix(asked)) if number % 7 == 0 else None


def test_request_without_gpus_fits_where_cpu_and_memory_do() -> None:
    assert isinstance(Fleet().place(Request((), Constraints())), Refusal)


@settings(max_examples=100)
@given(strategies.gpu_nodes(), requests())
def test_arrays_choose_the_same_gpus_as_one_node(node: GpuNode, request: Request) -> None:
    asked = dataclasses.replace(request, demands=request.demands[:1], policy="fragmentation")
    fleet = Fleet()
    fleet.update(NodeView.from_node(node))
    answer = fleet.place(asked)
    if isinstance(answer, Refusal):
        return
    grid = Grid()
    scoring = Scoring(grid)
    grid.put(NodeView.from_node(node), Room())
    shape = RequestKey.for_request(asked, policy="fragmentation")
    before = gpu_selection.begin(shape, grid, None).left
    left = gpu_selection.select(shape, scoring.needs(shape), scoring.worth, grid, None).left
    taken = (left.compute != before.compute) | (left.memory != before.memory)
    gpus = grid.gpus(0)
    chosen = {gpus[row].uuid for row in np.flatnonzero(taken[:, 0]).tolist()}
    assert {uuid for share in answer.shares for uuid in share.gpu_uuids} == chosen


def test_pods_with_many_shares_do_not_multiply_the_states_of_gpus() -> None:
    grid = Grid()
    scoring = Scoring(grid)
    for number in range(30):
        grid.put(NodeView.from_node(builders.node(f"node-{number}", gpus=8)), Room())
    demands = tuple(
        Demand((f"c{percent}",), Share(percent, 100, Memory(percent=percent)), 5) for percent in range(1, 9)
    )
    shape = RequestKey.for_request(Request(demands, Constraints()), policy="fragmentation")
    states = gpu_selection.select(shape, scoring.needs(shape), scoring.worth, grid, None).states
    assert states is not None
    assert states.kind.size <= 30 * 8
