"""Turns of gangs on a ledger in memory: all members are placed or none, and the next placer completes what one
began.
"""

from __future__ import annotations

import dataclasses

import pytest

from gpushare import contract, ledger
from gpushare.allocation import PodRef
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster


async def test_complete_gang_is_placed_across_nodes() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2), builders.node("node-b", gpus=2))
    for number in range(4):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="4")
    await cluster.step()
    assert cluster.waiting() == []
    entries = [entry for view in cluster.store.views() for entry in view.node.allocations]
    # Permanent, because the next placer releases tentative shares of pods that it has not seen running.
    assert [(entry.pod.uid != "", entry.reserved_until) for entry in entries] == [(True, None)] * 4


@pytest.mark.parametrize(
    ("request_", "gpus", "apart"),
    [("0.6", 1, True), ("0.6", 2, False), ("1", 1, False), ("0.5", 1, False)],
    ids=["two nodes", "one node", "whole GPUs", "one GPU"],
)
async def test_gang_with_shares_on_several_nodes_gets_a_warning(request_: str, gpus: int, apart: bool) -> None:
    cluster = Cluster(builders.node("node-a", gpus=gpus), builders.node("node-b", gpus=gpus))
    for number in range(2):
        cluster.create(f"worker-{number}", request=request_, group="ring", group_size="2")
    await cluster.step()
    assert len(cluster.order) == 2
    sentence = 'its group "ring" shares GPUs on 2 nodes'
    assert [name for name, said in cluster.warned.items() if said.startswith(sentence)] == (
        ["worker-0", "worker-1"] if apart else []
    )


async def test_gang_that_does_not_fit_has_no_shares_and_names_the_member() -> None:
    cluster = Cluster(builders.node("node-a", gpus=3))
    for number in range(4):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="4")
    await cluster.step()
    assert cluster.shares() == set()
    assert cluster.told["worker-3"].startswith("no GPU fits 1 GPU with 100% of the memory: of 3 GPUs on 1 node")
    assert cluster.told["worker-0"].startswith('its group "ring" waits for worker-3: no GPU fits')


async def test_two_gangs_do_not_wait_for_each_other() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    for number in range(3):
        for group in ("red", "blue"):
            cluster.create(f"{group}-{number}", request="1", group=group, group_size="3")
    await cluster.step()
    placed = {name for name in cluster.pods if name not in cluster.waiting()}
    assert placed == {"blue-0", "blue-1", "blue-2"}
    for name in placed:
        await cluster.end(name)
    await cluster.step()
    assert cluster.waiting() == []


async def test_the_large_members_are_placed_first() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    for name, request in (("a", "0.5"), ("b", "0.5"), ("c", "1")):
        cluster.create(name, request=request, group="mixed", group_size="3")
    await cluster.step()
    assert cluster.waiting() == []


async def test_next_placer_completes_a_gang() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    for number in range(3):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="3")
    for number in range(2):  # it ended after two of three reservations
        entry = builders.allocation(
            f"a{number}", f"GPU-node-a-{number}", request=100, memory_gib=80, reserved_until=60.0
        )
        entry = dataclasses.replace(entry, pod=PodRef("default", f"worker-{number}", f"u-worker-{number}"))
        cluster.store.change("node-a", lambda node, entry=entry: ledger.reserve(node, entry))
    await cluster.step()
    assert cluster.waiting() == []
    assert cluster.pods["worker-0"]["metadata"]["annotations"][contract.ALLOCATION] == "a0"


@pytest.mark.parametrize("missing", ["member", "room"])
async def test_next_placer_releases_a_gang_that_no_longer_fits(missing: str) -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    for number in range(2 if missing == "member" else 3):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="3")
    entry = builders.allocation("a0", "GPU-node-a-0", request=100, memory_gib=80, reserved_until=60.0)
    entry = dataclasses.replace(entry, pod=PodRef("default", "worker-0", "u-worker-0"))
    cluster.store.change("node-a", lambda node: ledger.reserve(node, entry))
    await cluster.step()
    assert cluster.shares() == set()
    assert len(cluster.waiting()) == len(cluster.pods)


async def test_placed_gang_is_ungated_although_it_is_no_longer_complete() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    for number in range(2):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="3")
    entry = builders.allocation("a0", "GPU-node-a-0", request=100, memory_gib=80)  # settled: all three had one
    entry = dataclasses.replace(entry, pod=PodRef("default", "worker-0", "u-worker-0"))
    cluster.store.change("node-a", lambda node: ledger.reserve(node, entry))
    await cluster.step()
    assert cluster.waiting() == ["worker-1"]
