"""A gang goes to as few nodes as possible that are near each other, and never waits because of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import codec, contract, ledger
from gpushare import request as requests
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement
from gpushare.request import Request
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster
from webhook.controllers.gated_pods import gang_placement
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore

RACK = "topology.kubernetes.io/rack"


def members(count: int, *, cpu: str = "1", **asks: str) -> list[tuple[Pod, Request]]:
    pods = []
    for number in range(count):
        manifest = builders.pod(f"m{number}", group="ring", group_size=str(count), **{"request": "1", **asks})
        manifest["metadata"]["uid"] = f"m{number}"
        manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
        manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        pods.append((Pod.from_manifest(manifest), requests.parse(manifest)))
    return pods


def store(*nodes: GpuNode, **racks: str) -> MemoryStore:
    return MemoryStore(
        map(codec.to_document, nodes),
        [
            builders.node_object(name, gpus=8, labels={RACK: rack}, allocatable={"cpu": "64"})
            for name, rack in racks.items()
        ],
    )


def full(node: GpuNode, *indexes: int) -> GpuNode:
    """Return the node with these GPUs allocated."""
    for index in indexes:
        uuid = node.gpus[index].uuid
        node = ledger.reserve(node, builders.allocation(f"held-{uuid}", uuid, request=100, uid=f"u-{uuid}"))
    return node


def preferred(known: MemoryStore, asks: list[tuple[Pod, Request]], **more: Any) -> list[str]:
    nodes = asyncio.run(gang_placement.preferred_nodes(known, asks, **{"policy": "fragmentation", **more}))
    return [nodes.get(pod.ref.uid, "") for pod, _ in asks]


def three() -> tuple[GpuNode, GpuNode, GpuNode]:
    """Return two nodes with one free GPU each, and an empty node, which every policy would use last."""
    a, b, c = (builders.node(name, gpus=4) for name in "abc")
    return full(a, 0, 1, 2), full(b, 0, 1, 2), c


def test_all_go_to_the_node_that_has_room_for_all() -> None:
    known = store(*three(), a="r1", b="r1", c="r2")
    asks = members(3)
    first = known.chooser.place(asks[0][0].manifest, asks[0][1], policy="fragmentation")
    assert isinstance(first, Placement)
    assert first.node in "ab"
    assert preferred(known, asks) == ["c", "c", "c"]


def test_spread_policy_has_no_preferred_nodes() -> None:
    assert preferred(store(*three(), a="r1", b="r1", c="r2"), members(3), policy="spread") == [""] * 3
    assert preferred(store(*three(), a="r1", b="r1", c="r2"), members(3, policy="spread")) == [""] * 3


def test_other_members_go_to_used_nodes_and_then_to_their_rack() -> None:
    nodes = [builders.node(name, gpus=4) for name in "abcd"]
    racks = {"a": "r1", "b": "r2", "c": "r3", "d": "r1"}
    assert preferred(store(*nodes, **racks), members(1), used_nodes=["b"]) == ["b"]
    known = store(full(nodes[0], 0, 1, 2, 3), *nodes[1:], **racks)
    assert preferred(known, members(1), used_nodes=["a"]) == ["d"]
    of_eight = preferred(store(*nodes, **racks), members(8))
    assert sorted(of_eight.count(name) for name in set(of_eight)) == [4, 4]
    assert set(of_eight) == {"a", "d"}


def test_cpu_of_a_node_counts_for_all_members() -> None:
    nodes = [builders.node(name, gpus=4) for name in "ab"]
    known = MemoryStore(
        map(codec.to_document, nodes),
        [
            builders.node_object(name, gpus=8, labels={RACK: "r"}, allocatable={"cpu": cpu})
            for name, cpu in (("a", "2"), ("b", "64"))
        ],
    )
    assert preferred(known, members(4, cpu="1")) == ["b"] * 4


@pytest.mark.slow
@given(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=5), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_preferred_nodes_never_keep_a_gang_waiting(there: list[set[int]], count: int) -> None:
    nodes = [full(builders.node(f"n{number}", gpus=4), *held) for number, held in enumerate(there)]
    cluster = Cluster(*nodes)
    for number in range(count):
        cluster.create(f"m{number}", request="1", group="ring", group_size=str(count))
    asyncio.run(cluster.step())
    placed = {f"m{number}" for number in range(count)} - set(cluster.waiting())
    assert len(placed) == (count if sum(4 - len(held) for held in there) >= count else 0)
