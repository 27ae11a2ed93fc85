"""Gangs with real processes: all members are placed or none, also when the placer is killed while it places one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpushare import contract
from tests import builders
from tests.config import manifests
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

TENTATIVE = {"reservedUntil": "2026-01-01T00:00:00Z"}  # until all of a gang have a share


def members(count: int, *, group: str = "ring", size: int | None = None, request: str = "1") -> list[dict[str, Any]]:
    return [
        builders.pod(f"{group}-{number}", request=request, group=group, group_size=str(size or count))
        for number in range(count)
    ]


def gated(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.pods() if pod["spec"].get("schedulingGates")}


def reason(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["annotations"].get(contract.REASON, ""))


def is_whole(cluster: Cluster, group: str, size: int) -> bool:
    return len([name for name in gated(cluster) if name.startswith(group)]) in {0, size}


def test_gang_waits_for_its_last_member_and_then_starts(cluster: Cluster) -> None:
    cluster.start()
    *first, last = members(3)
    for waiting, manifest in zip((2, 1), first, strict=True):
        made = cluster.create(manifest)
        assert made["spec"]["schedulingGates"] == [{"name": contract.SCHEDULING_GATE}]
        assert made["metadata"]["annotations"][contract.REASON] == (
            'waits for its group "ring": its 3 pods are placed together'
        )
        # Of all waiting pods, in any order of creation: a reason stays true while others arrive.
        for member in ("ring-0", "ring-1")[: 3 - waiting]:
            more = f"waits for {waiting} more of its group"
            until(lambda member=member, more=more: more in reason(cluster, member), cluster.explain)
    assert cluster.node().allocations == ()
    cluster.create(last)
    until(lambda: not gated(cluster), cluster.explain)
    until(cluster.is_settled, cluster.explain)
    assert len(cluster.node().allocations) == 3


def test_gang_that_does_not_fit_has_no_shares(cluster: Cluster) -> None:
    cluster.start()
    cluster.create(builders.pod("holder", request="0.1"))
    for member in members(4):
        cluster.create(member)
    until(lambda: "no GPU fits 1 GPU" in reason(cluster, "ring-0"), cluster.explain)
    assert [entry.pod.name for entry in cluster.node().allocations] == ["holder"]
    assert "its group " in reason(cluster, "ring-0") or "its group " in reason(cluster, "ring-1")
    cluster.delete("holder")
    until(lambda: not gated(cluster), cluster.explain)
    until(cluster.is_settled, cluster.explain)


def test_the_torchrun_sample_starts_with_its_minimum_and_others_join(cluster: Cluster) -> None:
    """Two elastic gangs of one template, which together ask for more GPUs than there are."""
    (template,) = (
        item["spec"]["template"] for item in manifests.documents(manifests.TORCHRUN) if "template" in item["spec"]
    )
    cluster.start()
    for name in ("elastic", "other"):
        for number in range(5):
            annotations = {**template["metadata"]["annotations"], contract.GROUP: name}
            metadata = {"name": f"{name}-{number}", "namespace": "default", "annotations": annotations}
            cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    until(lambda: len(gated(cluster)) == 6, cluster.explain)
    joined = {pod["metadata"]["name"] for pod in cluster.pods()} - gated(cluster)
    for group in ("elastic", "other"):
        assert len([name for name in joined if name.startswith(group)]) in {0, 2, 4}
    until(lambda: all("no GPU fits" in reason(cluster, name) for name in gated(cluster)), cluster.explain)
    cluster.delete(min(joined))
    until(lambda: len(gated(cluster)) == 5, cluster.explain)
    until(cluster.is_settled, cluster.explain)


def test_gangs_do_not_block_each_other(cluster: Cluster) -> None:
    cluster.start()
    red, blue = members(3, group="red"), members(3, group="blue")
    for pair in zip(red, blue, strict=True):
        for manifest in pair:
            cluster.create(manifest)
    until(lambda: len(gated(cluster)) == 3, cluster.explain)
    waiting = gated(cluster)
    assert len({name.partition("-")[0] for name in waiting}) == 1
    for name in {pod["metadata"]["name"] for pod in cluster.pods()} - waiting:
        cluster.delete(name)
    until(lambda: not gated(cluster), cluster.explain)
    until(cluster.is_settled, cluster.explain)


@pytest.mark.parametrize("moment", ["reserved", "opened"])
def test_placer_killed_within_a_gang_leaves_no_partial_gang(cluster: Cluster, moment: str) -> None:
    cluster.add_node(builders.node("node-b", gpus=8))
    first = cluster.start()
    until(lambda: first.metric("gpushare_placer_leads") == 1, first.explain)
    size = 12
    made = members(size, request="0.6")  # one a GPU, and all twelve GPUs are needed
    for manifest in made[:-1]:
        cluster.create(manifest)
    second = cluster.start()
    cluster.create(made[-1])
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        nodes = [cluster.node("node-a"), cluster.node("node-b")] if moment == "reserved" else []
        if any(node.allocations for node in nodes) or (moment == "opened" and len(gated(cluster)) < size):
            break
    cluster.kill(first)
    until(lambda: second.metric("gpushare_placer_leads") == 1, second.explain, seconds=60)
    until(lambda: not gated(cluster), cluster.explain)
    until(lambda: _settled_everywhere(cluster), cluster.explain)


@pytest.mark.parametrize("held", [1, 11])
def test_shares_that_a_dead_placer_reserved_for_a_gang_are_found_again(cluster: Cluster, held: int) -> None:
    """The state that a placer leaves when it dies between two reservations, or before it ungates the first pod."""
    cluster.add_node(builders.node("node-b", gpus=8))
    first = cluster.start("--no-placer")
    made = [cluster.create(member) for member in members(12, request="0.6")]
    assert len(gated(cluster)) == 12
    by_node: dict[str, list[dict[str, Any]]] = {"node-a": [], "node-b": []}
    for number, gated_pod in enumerate(made[:held]):
        name, index = ("node-a", number) if number < 4 else ("node-b", number - 4)
        share = {"containers": ["main"], "gpus": [f"GPU-{name}-{index}"], "request": 60, "limit": 100, "memory": 2**30}
        metadata = gated_pod["metadata"]
        holder = {key: metadata[key] for key in ("namespace", "name", "uid")}
        by_node[name].append({"id": f"left{number}", "pod": holder, "shares": [share], **TENTATIVE})
    for name, allocations in by_node.items():
        cluster.change(name, {"spec": {"allocations": allocations}})
    assert first.stop() == 0
    cluster.front.ports.clear()
    cluster.start()
    until(lambda: not gated(cluster), cluster.explain)
    until(lambda: _settled_everywhere(cluster), cluster.explain)
    kept = {pod["metadata"]["annotations"][contract.ALLOCATION] for pod in cluster.pods()}
    assert {f"left{number}" for number in range(held)} <= kept


def test_incomplete_gang_releases_the_reservations_of_a_dead_placer(cluster: Cluster) -> None:
    first = cluster.start("--no-placer")
    made = [cluster.create(member) for member in members(3)]
    metadata = made[0]["metadata"]
    holder = {key: metadata[key] for key in ("namespace", "name", "uid")}
    share = {"containers": ["main"], "gpus": ["GPU-node-a-0"], "request": 100, "limit": 100, "memory": 2**30}
    left = {"id": "left", "pod": holder, "shares": [share], **TENTATIVE}
    cluster.change("node-a", {"spec": {"allocations": [left]}})
    cluster.delete("ring-2")
    assert first.stop() == 0
    cluster.front.ports.clear()
    cluster.start()
    until(lambda: cluster.node().allocations == (), cluster.explain)
    assert gated(cluster) == {"ring-0", "ring-1"}


def _settled_everywhere(cluster: Cluster) -> bool:
    held = {(entry.id, entry.pod.uid) for name in ("node-a", "node-b") for entry in cluster.node(name).allocations}
    wanted = {
        (pod["metadata"]["annotations"].get(contract.ALLOCATION), pod["metadata"]["uid"]) for pod in cluster.pods()
    }
    return held == wanted
