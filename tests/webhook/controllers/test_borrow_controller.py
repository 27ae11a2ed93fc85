"""The borrow controller on a ledger in memory: GPUs are borrowed, shared, reclaimed and given back, and all is said."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_errors
from gpushare.nodefilters import PodInfo
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from tests import builders
from tests.webhook.controllers.lending_cluster import NODE, Cluster
from tests.webhook.controllers.test_demand_controller import gated
from webhook.controllers.borrow import borrow_controller, borrow_packing
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore


async def test_gpus_are_borrowed_for_shares_shared_and_given_back() -> None:
    cluster = Cluster()
    waiting = [gated(name, request="0.5") for name in ("a", "b", "c")]
    for made in waiting:
        made["metadata"]["uid"] = made["metadata"]["name"]
    asked = f"; waits for a GPU: 2 asked for from NVIDIA's plugin on node {NODE}"
    assert await cluster.round(*waiting) == [asked] * 3
    assert await cluster.round(*waiting) == [asked] * 3
    assert list(cluster.pods) == ["p1", "p2"]  # asked for once
    cluster.bind("p1", 1)
    assert await cluster.round(*waiting[:2]) == ["", ""]
    assert cluster.used == {1: 100}
    assert await cluster.round() == []
    assert list(cluster.pods) == ["p1"]  # nothing waits for the other one any more
    assert cluster.pods["p1"]["metadata"]["labels"][contract.IN_USE_LABEL] == "true"
    cluster.end_shares()
    await cluster.round()
    assert contract.IN_USE_LABEL not in cluster.pods["p1"]["metadata"]["labels"]
    cluster.now += 59
    await cluster.round()
    assert "deletionTimestamp" not in cluster.pods["p1"]["metadata"]
    cluster.now += 1
    await cluster.round()
    await cluster.round()
    assert cluster.pods == {}
    assert cluster.events == []
    assert await cluster.round(waiting[0]) == [asked.replace("2", "1", 1)]  # the GPU takes no share as it is


async def test_a_placeholder_with_shares_that_is_preempted_keeps_its_gpu_until_they_end() -> None:
    cluster = Cluster(gpus=2)
    made = [gated(name, request="1") for name in ("a", "b")]
    await cluster.round(*made)
    cluster.bind("p1", 0)
    cluster.bind("p2", 1)
    assert await cluster.round(made[0]) == [""]
    used = next(iter(cluster.used))
    one, other = ("p1", "p2") if used == 0 else ("p2", "p1")
    cluster.pods[one]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await cluster.round()
    await cluster.round()
    assert list(cluster.pods) == [one]  # the empty one goes at once, for the pod that waits
    assert other not in cluster.pods
    (event,) = cluster.events
    assert event[0] == contract.EVENT_GPU_RECLAIMED
    assert "takes no new shares, and goes back to its device plugin when its shares have ended" in event[1]
    assert "-p" not in str(next(iter(cluster.store.stored())).borrowed)
    cluster.end_shares()
    await cluster.round()
    assert f"-{one}" in next(iter(cluster.store.stored())).borrowed.values()  # its node's agent ends it


async def test_shares_whose_placeholder_was_lost_get_another_and_that_is_reported() -> None:
    cluster = Cluster(gpus=1)
    made = gated("a", request="0.5")
    await cluster.round(made)
    cluster.bind("p1", 0)
    assert await cluster.round(made) == [""]
    cluster.end("p1")  # by force
    await cluster.round()
    assert [reason for reason, _ in cluster.events] == [contract.EVENT_PLACEHOLDER_LOST]
    assert list(cluster.pods) == ["p2"]
    assert "belongs to another device plugin" in await blocked(cluster, gated("b", request="0.1"))
    cluster.bind("p2", 0)
    assert await cluster.round(gated("b", request="0.1")) == [""]


async def test_a_placeholder_whose_agent_neither_reports_nor_ends_it_gets_an_event_and_the_pod_is_told() -> None:
    cluster = Cluster()
    made = gated("a", request="0.5")
    await cluster.round(made)
    cluster.bind_unreported("p1")
    for _ in range(2):
        (end,) = await cluster.round(made)
        assert "reported" not in end
        cluster.now += borrow_controller.SILENT_SECONDS / 2
    (end,) = await cluster.round(made)
    reported = (
        "has a GPU that the agent of node-a has not reported, so it takes no share: is the agent of node-a running?"
    )
    assert end.startswith(f"; waits for a GPU: 1 asked for from NVIDIA's plugin on node {NODE}, and p1 {reported}")
    assert cluster.asked == []  # room may be made elsewhere
    ((about, reason, note),) = cluster.told
    assert (about, reason) == ("p1", contract.EVENT_AGENT_SILENT)
    assert note.startswith(reported)
    cluster.bind("p1", 0)
    assert await cluster.round(made) == [""]
    cluster.end_shares()
    stopped = {contract.RESOURCE_PERCENT: 0}
    spec = dataclasses.replace(cluster.spec, allocatable={**(cluster.spec.allocatable or {}), **stopped})
    cluster.store.chooser.cache.put_node_spec(NODE, spec)
    for _ in range(8):
        await cluster.round(has_agent=False)
        cluster.now += 20
    assert cluster.told[1:] == [
        (
            "p1",
            contract.EVENT_AGENT_SILENT,
            f"is given back, and keeps its GPU from other pods until the agent of {NODE} ends it: "
            f"the agent of {NODE} is not running: its kubelet offers no gpushare.io/gpu-percent",
        )
    ]


@pytest.mark.parametrize("kind", ["mps", "mig"])
async def test_an_isolation_that_changes_the_gpu_is_refused_with_the_reason(kind: str) -> None:
    cluster, made = Cluster(), gated("a", request="0.5", isolation=kind)
    said = f"takes no shares with isolation {kind}, only with arbiter, because it belongs to another device plugin"
    assert said in await blocked(cluster, made)
    assert await cluster.round(made) == [""]  # and nothing is added: no borrowed GPU would help
    assert cluster.pods == {}
    nodes, wanted = list(cluster.store.stored()), RequestingPod.from_manifest(made)
    refusal = World(nodes).place(wanted.manifest, wanted.request)  # as `fit` and `why` do
    assert said in str(refusal)


async def blocked(cluster: Cluster, made: dict[str, Any]) -> str:
    waits = Pod.from_manifest(made)
    return str(await cluster.reservation.reserve(waits.manifest, waits.request, waits.ref))  # type: ignore[arg-type]


async def test_a_placeholder_that_gets_no_gpu_is_quoted() -> None:
    cluster = Cluster()
    await cluster.round(gated("a", request="1"))
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    cluster.pods["p1"]["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": said}]}
    cluster.now += borrow_controller.LATE_SECONDS
    (end,) = await cluster.round(gated("a", request="1"))
    assert end == f"; waits for a GPU: 1 asked for from NVIDIA's plugin on node {NODE}, and p1 waits: {said}"


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({"nvidia.com/gpu.replicas": "4"}, "its GPUs are offered 4 times each (label nvidia.com/gpu.replicas)"),
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, "its GPUs are already shared by mps"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-MIG-1g.5gb"}, "it has GPUs in MIG mode"),
        ({"label": "many"}, 'its label gpushare.io/borrow is "many": write how many of its GPUs gpushare may borrow'),
        ({"label": "0"}, "no more than 0 may be borrowed (label gpushare.io/borrow)"),
    ],
)
async def test_a_node_that_lends_no_gpu_is_named_with_the_reason(labels: dict[str, str], sentence: str) -> None:
    cluster = Cluster(**labels)  # type: ignore[arg-type]
    (end,) = await cluster.round(gated("a", request="1"))
    assert end.startswith(f"; borrows no GPU of {NODE}: {sentence}")
    assert cluster.pods == {}


async def test_a_node_without_another_device_plugin_lends_no_gpu() -> None:
    cluster = Cluster()
    allocatable = {**(cluster.spec.allocatable or {}), contract.BORROWED_RESOURCE: 0}
    cluster.store.chooser.cache.put_node_spec(NODE, dataclasses.replace(cluster.spec, allocatable=allocatable))
    (end,) = await cluster.round(gated("a", request="1"))
    assert "it offers no nvidia.com/gpu" in end
    assert "not those of a DRA driver (GPUCluster)" in end


async def test_the_bounds_of_a_node_and_of_all_hold() -> None:
    cluster = Cluster(gpus=3, label="1-2")
    await cluster.round()
    assert len(cluster.pods) == 1  # at least
    waiting = [gated(name, request="1") for name in "abc"]
    ends = await cluster.round(*waiting)
    assert len(cluster.pods) == 2
    assert "no more than 2 may be borrowed" in ends[2]
    few = Cluster(gpus=3, label="3", max_gpus=1)
    ends = await few.round(*waiting)
    assert len(few.pods) == 1
    assert ends[1] == "; borrows no GPU: as many are borrowed as may be (--borrow-max-gpus)"


async def test_a_gpu_that_the_agent_has_not_reported_yet_counts_once_towards_the_bound() -> None:
    cluster = Cluster(gpus=2, label="2", max_gpus=2)
    first, second = (gated(name, request="1") for name in "ab")
    await cluster.round(first)
    cluster.bind_unreported("p1")
    ends = await cluster.round(first, second)
    assert ends[1].startswith("; waits for a GPU: 2 asked for")
    assert len(cluster.pods) == 2
    await cluster.round(first, second, gated("c", request="1"))
    assert len(cluster.pods) == 2


async def test_a_gang_that_too_few_gpus_are_lent_for_borrows_none_and_keeps_none_from_others() -> None:
    cluster = Cluster(gpus=2, label="2")
    gang = [gated(name, request="1", group="g", group_size="3") for name in "abc"]
    (alone,) = await cluster.round(gated("alone", request="1"))
    assert "1 asked for" in alone
    cluster.bind("p1", 0)
    for _ in range(2):
        ends = await cluster.round(*gang, together=3)
        assert ends[0] == "; borrows no GPU for its group, as only 2 of the 3 pods that start together would fit"
        assert "no more than 2 may be borrowed" in ends[2]
        cluster.now += 30
    for _ in range(2):
        await cluster.round(*gang, together=3)
    assert cluster.pods == {}  # the GPU was given back
    ends = await cluster.round(*gang, gated("alone", request="1"), together=3)
    assert "1 asked for" in ends[3]
    await cluster.round(*(gated(name, request="1", group="g", group_size="2") for name in "ab"), together=2)
    assert len(cluster.pods) == 2


async def test_a_reclaimed_gpu_does_not_stop_borrowing() -> None:
    cluster = Cluster(gpus=4, label="4")
    await cluster.round(gated("a", request="1"))
    cluster.bind("p1", 0)
    assert await cluster.round(gated("a", request="1")) == [""]
    cluster.pods["p1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for _ in range(3):
        cluster.now += 2
        (end,) = await cluster.round(gated("b", request="1"))
        assert "1 asked for" in end
        assert list(cluster.pods) == ["p1", "p2"]
        cluster.bind_unreported("p2")
    assert "deletionTimestamp" not in cluster.pods["p2"]["metadata"]


async def test_a_pod_that_waits_for_a_busy_gpu_may_get_a_node() -> None:
    cluster = Cluster()
    cluster.bind_whole(1)
    ends = await cluster.round(*(gated(name, request="1") for name in "ab"))
    assert all("2 asked for" in end for end in ends)
    assert cluster.asked == ["a"]  # a GPU is free for one of them
    cluster.now += borrow_controller.LATE_SECONDS
    await cluster.round(gated("a", request="1"))
    assert cluster.asked == []  # its placeholder is late


async def test_a_node_that_gave_a_useless_gpu_is_asked_less_and_less() -> None:
    cluster = Cluster(gpus=2, label="1")

    def cordon(node: Any) -> Any:
        gpus = tuple(dataclasses.replace(gpu, cordoned=gpu.index == 0) for gpu in node.gpus)
        return dataclasses.replace(node, gpus=gpus)

    cluster.store.change(NODE, cordon)
    ends, given = list[str](), 0
    for _ in range(300):
        cluster.now += 2
        ends += await cluster.round(gated("a", request="1"))
        for name in [name for name, made in cluster.pods.items() if "nodeName" not in made["spec"]]:
            cluster.bind(name, 0)
            given += 1
    assert given == 3  # in ten minutes
    assert ends[-1] == f"; borrows no GPU of {NODE}: the kubelet gave GPU 0, which is cordoned"


async def test_a_placeholder_that_cannot_be_deleted_does_not_end_the_round() -> None:
    cluster = Cluster()
    await cluster.round(gated("a", request="1"))
    cluster.bind("p1", 0)
    await cluster.round()
    cluster.now += 60
    cluster.undeletable = {"p1"}
    await cluster.round()
    assert await cluster.round(gated("a", request="1")) == [f"; borrows no GPU of {NODE}: it is overloaded"]


async def test_a_kubelet_that_restarts_does_not_give_gpus_back() -> None:
    cluster = Cluster(label="1-2")
    await cluster.round()
    cluster.bind("p1", 0)
    allocatable = {**(cluster.spec.allocatable or {}), contract.BORROWED_RESOURCE: 0}
    cluster.store.chooser.cache.put_node_spec(NODE, dataclasses.replace(cluster.spec, allocatable=allocatable))
    for _ in range(3):
        cluster.now += 60
        await cluster.round()
    assert list(cluster.pods) == ["p1"]
    assert "deletionTimestamp" not in cluster.pods["p1"]["metadata"]


async def test_a_placeholder_of_a_node_without_a_gpunode_is_given_back_unless_shares_run_there() -> None:
    for has_shares in (True, False):
        cluster = Cluster()
        await cluster.round(gated("a", request="1"))
        cluster.controller.store = cluster.store = MemoryStore([])
        cluster.bind_unreported("p1")
        if has_shares:
            made = builders.pod("b", uid="b")
            made["spec"]["containers"][0]["resources"] = {"limits": {contract.RESOURCE_PERCENT: "50"}}
            cluster.store.chooser.cache.put("b", PodInfo.from_manifest(made, NODE))
        for _ in range(3):
            cluster.now += 60
            await cluster.controller.tend()
            await cluster.controller.reconcile([])
        assert bool(cluster.pods) is has_shares


async def test_all_kinds_of_pods_have_their_turn() -> None:
    cluster = Cluster()
    kinds = [gated(f"p{number}", memory=f"{100 + number}Gi") for number in range(borrow_packing.MAX_KINDS)]
    for made in (*kinds, last := gated("last", request="1")):
        made["metadata"]["uid"] = made["metadata"]["name"]
    assert (await cluster.round(*kinds, last))[-1] == ""
    assert "1 asked for" in (await cluster.round(*kinds, last))[-1]


async def test_a_label_that_is_rejected_delays_no_other() -> None:
    cluster = Cluster()
    waiting = [gated(name, request="1") for name in "ab"]
    await cluster.round(*waiting)
    cluster.bind("p1", 0)
    cluster.bind("p2", 1)
    patch = cluster.patch

    async def patch_one(path: str, body: Any) -> dict[str, Any]:
        if path.endswith("p1"):
            raise api_errors.Invalid("another webhook denied p1")
        return await patch(path, body)

    cluster.patch = patch_one  # type: ignore[method-assign]
    assert await cluster.round(*waiting) == ["", ""]
    await cluster.round()
    assert cluster.pods["p2"]["metadata"]["labels"][contract.IN_USE_LABEL] == "true"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the kinds of pods that are tried on a node from now on."""
    place, tried = borrow_packing._Packer._place, list[str]()

    def count(self: Any, pod: Pod, request: Any, kind: str, *more: Any) -> bool:
        tried.append(kind)
        return place(self, pod, request, kind, *more)

    monkeypatch.setattr(borrow_packing._Packer, "_place", count)
    return tried


@pytest.mark.parametrize("cpu", ["100m", "200m"], ids=["no pod of a gang fits", "one pod fits"])
async def test_gangs_that_do_not_fit_are_tried_no_more_often_than_single_pods(
    monkeypatch: pytest.MonkeyPatch, cpu: str
) -> None:
    cluster, tried = Cluster(gpus=2, label="1"), counted(monkeypatch)
    first = {"gpus": "2"} if cpu == "100m" else {}
    gangs = []
    for number in range(2 * borrow_packing.MAX_KINDS):
        gang = {"group": f"g{number}", "group_size": "2", "request": "1"}
        gangs += [gated(f"a{number}", **gang, **first), gated(f"b{number}", **gang, gpus="2", cpu=f"{100 + number}m")]
    for made in gangs:
        made["metadata"]["uid"] = made["metadata"]["name"]
    await cluster.round(*gangs, together=2)
    before = len(set(tried))
    assert before <= 2 * borrow_packing.MAX_KINDS  # one pod of each gang may fit
    await cluster.round(*gangs, together=2)
    assert len(set(tried)) > before  # others have their turn
    assert cluster.pods == {}


async def test_a_gang_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, tried = Cluster(), counted(monkeypatch)
    gang = [gated(name, request="1", group="g", group_size="2") for name in "ab"]
    for made in gang:
        made["metadata"]["uid"] = made["metadata"]["name"]
    ends = await cluster.round(*gang, together=2)
    assert all("2 asked for" in end for end in ends)
    assert len(cluster.pods) == 2
    assert len(tried) == 2
