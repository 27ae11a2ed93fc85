"""Linked GPUs: whole link groups are left to pods that need them, and such pods get one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from gpushare import ledger, request
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from gpushare.mix import Mix
from gpushare.placement import NodeView, Placement, topology
from gpushare.placement.fleet import Fleet
from tests import builders

FOUR, PAIR, ONE = (request.parse(builders.pod(gpus=str(gpus))) for gpus in (4, 2, 1))
FOURS_AND_SINGLES = builders.mix([FOUR, ONE] * 40)


def node_of(name: str, *, used: Collection[int] = (), numa_known: bool = True) -> GpuNode:
    """Return a node with 8 GPUs in two link groups of four."""
    gpus = tuple(
        builders.gpu(index, node=name, link_group=index // 4, numa_node=index // 4 if numa_known else None)
        for index in range(8)
    )
    node = GpuNode(name, gpus)
    for index in used:
        uuid = gpus[index].uuid
        node = ledger.reserve(node, builders.allocation(f"{name}-{index}", uuid, request=100, memory_gib=80))
    return node


def fleet_of(mix: Mix, *nodes: GpuNode) -> Fleet:
    fleet = Fleet()
    for node in nodes:
        fleet.update(NodeView.from_node(node))
    fleet.learn(mix)
    return fleet


def indexes(fleet: Fleet, asked: request.Request) -> tuple[str, list[int]]:
    answer = fleet.place(asked)
    assert isinstance(answer, Placement), answer
    return answer.node, [int(uuid.rsplit("-", 1)[1]) for share in answer.shares for uuid in share.gpu_uuids]


@pytest.mark.parametrize(("used", "taken"), [({5}, {4, 6, 7}), ({0, 5, 6}, {4, 7})])
def test_one_gpu_comes_from_the_group_with_the_fewest_left(used: set[int], taken: set[int]) -> None:
    _, got = indexes(fleet_of(Mix(), node_of("a", used=used)), ONE)
    assert set(got) <= taken


def test_pair_comes_from_the_group_with_two_left() -> None:
    assert indexes(fleet_of(Mix(), node_of("a", used={4, 5})), PAIR) == ("a", [6, 7])


@pytest.mark.parametrize("numa_known", [True, False])
@pytest.mark.parametrize("whole", ["a", "b"])
def test_four_take_the_whole_group_and_one_the_other(whole: str, *, numa_known: bool) -> None:
    halved = "b" if whole == "a" else "a"
    fleet = fleet_of(
        FOURS_AND_SINGLES,
        node_of(whole, used=range(4), numa_known=numa_known),
        node_of(halved, used={0, 1, 4, 5}, numa_known=numa_known),
    )
    assert indexes(fleet, FOUR) == (whole, [4, 5, 6, 7])
    assert indexes(fleet, ONE)[0] == halved


def test_single_gpu_may_break_the_last_whole_group() -> None:
    fleet = fleet_of(FOURS_AND_SINGLES, node_of("a", used=range(4)))
    assert indexes(fleet, ONE)[0] == "a"


def test_cached_linked_sets_equal_fresh_ones() -> None:
    node = node_of("a")
    kept = fleet_of(FOURS_AND_SINGLES, node, node_of("b", used={1, 2}))
    for number, asked in enumerate([ONE, PAIR, ONE, PAIR, ONE]):
        for pod_request in (ONE, PAIR, FOUR):
            kept.lowest(pod_request)
        answer = kept.place_on(NodeView.from_node(node), asked)
        assert isinstance(answer, Placement)
        entry = answer.allocation(asked, allocation_id=str(number), pod=PodRef("default"), reserved_until=None)
        node = ledger.reserve(node, entry)
        kept.update(NodeView.from_node(node))
    prices = kept.prices()
    fresh = fleet_of(FOURS_AND_SINGLES, node, node_of("b", used={1, 2}))
    assert kept.values(["a", "b"], prices).tolist() == fresh.values(["a", "b"], prices).tolist()


def test_links_that_appear_or_leave_count_as_if_known_from_the_start() -> None:
    nodes = [node_of("a"), node_of("b", used={1, 2}), node_of("c", used={0, 5, 6})]
    unlinked = [replace(node, gpus=tuple(replace(gpu, link_group=None) for gpu in node.gpus)) for node in nodes]
    for before, after in ((unlinked, nodes), (nodes, unlinked)):
        kept, fresh = fleet_of(FOURS_AND_SINGLES, *before), fleet_of(FOURS_AND_SINGLES, *after)
        kept.prices()
        for node in after:
            kept.update(NodeView.from_node(node))
        prices = [fleet.prices() for fleet in (kept, fresh)]
        assert [indexes(kept, asked) for asked in (ONE, PAIR, FOUR)] == [
            indexes(fresh, asked) for asked in (ONE, PAIR, FOUR)
        ]
        assert kept.values("abc", prices[0]).tolist() == fresh.values("abc", prices[1]).tolist()


def test_unlinked_gpus_cost_more_where_linked_ones_exist() -> None:
    layout = topology.layout(node_of("a").gpus)
    assert layout.apart([0, 1, 2, 3]) == 0.0
    assert layout.apart([0, 1, 4, 5]) > topology.APART_COST
    assert layout.apart(range(8)) == pytest.approx(topology.APART_COST * 16 / 7)
