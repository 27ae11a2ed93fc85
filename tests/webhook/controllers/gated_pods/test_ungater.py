"""If the API server rejects ungating a pod, it gets the reason, is retried with growing pauses, and keeps no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonpatch
import pytest

from gpushare import codec, contract, ledger
from gpushare import request as requests
from gpushare.cluster import api_errors
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import share_resources
from tests import builders
from webhook import metrics
from webhook.controllers.gated_pods import ungater
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.waiting_units import PodIndex
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

pytestmark = pytest.mark.slow

DENIED = api_errors.Forbidden("the policy of the team denies it", status=403)
AWAY = api_errors.Unavailable("etcdserver: request timed out", status=500)


class Cluster:
    """Stands for the API server and the recorder of a cluster of one node with one GPU."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.trouble: dict[str, api_errors.ClusterError] = {}  # by name: the answer to ungating the pod
        self.takes_reasons = True  # whether reasons can be written on pods
        self.tried: list[str] = []
        self.notes: list[str] = []
        self.now = 0.0
        self.store = MemoryStore([codec.to_document(builders.node(gpus=1))])
        self.scheduler = GatedPodScheduler(
            self,  # type: ignore[arg-type]
            self.store,  # type: ignore[arg-type]
            Reservation(self.store, policy="pack"),
            self,  # type: ignore[arg-type]
            metrics.Metrics(),
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
        )

    def create(self, name: str, **asked: str) -> None:
        made = builders.pod(name, **asked)
        made["metadata"].update(
            uid=f"u-{name}", resourceVersion="1", creationTimestamp=f"2026-01-0{len(self.pods) + 1}"
        )
        made["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
        wanted = share_resources.resources(requests.parse(made).demands[0], "main")
        made["spec"]["containers"][0]["resources"] = {"limits": wanted, "requests": wanted}
        self.pods[name] = made

    async def get(self, path: str) -> dict[str, Any]:
        return self.pods[path.rsplit("/", 1)[1]]

    async def patch(self, path: str, body: Any, content_type: str = "") -> None:
        name = path.rsplit("/", 1)[1]
        before = self.pods[name]
        if content_type:
            self.tried.append(name)
            if name in self.trouble:
                raise self.trouble[name]
            try:
                after = jsonpatch.apply_patch(before, body)
            except jsonpatch.JsonPatchException as error:
                raise api_errors.Invalid(str(error), status=422) from error
        elif not self.takes_reasons:
            raise DENIED
        else:
            annotations = {**before["metadata"]["annotations"], **body["metadata"]["annotations"]}
            after = {**before, "metadata": {**before["metadata"], "annotations": annotations}}
        version = str(int(before["metadata"]["resourceVersion"]) + 1)
        self.pods[name] = {**after, "metadata": {**after["metadata"], "resourceVersion": version}}

    def record(self, regarding: Mapping[str, Any], _reason: str, note: str, **_: Any) -> None:
        self.notes.append(f"{regarding['name']}: {note}")

    async def rounds(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            await self.scheduler.reconcile(PodIndex(map(Pod.from_manifest, self.pods.values())))
            self.now += 0.5

    def reason(self, name: str) -> str:
        return str(self.pods[name]["metadata"]["annotations"].get(contract.REASON, ""))

    def placed(self) -> list[str]:
        return [name for name, pod in self.pods.items() if contract.ALLOCATION in pod["metadata"]["annotations"]]

    def holders(self) -> list[str]:
        return sorted(entry.pod.name for node in self.store.stored() for entry in node.allocations)

    def give(self, name: str, **share: Any) -> None:
        """Give a pod a permanent share in the ledger, as a former placer has left it."""
        entry = builders.allocation("a-" + name, "GPU-node-a-0", pod_name=name, uid=f"u-{name}", **share)

        def change(node: GpuNode) -> GpuNode:
            return ledger.reserve(node, entry)

        self.store.change("node-a", change)


async def test_rejected_ungating_is_reported_and_keeps_no_gpu() -> None:
    cluster = Cluster()
    cluster.create("refused", request="0.8")
    cluster.trouble["refused"] = DENIED
    await cluster.rounds(1)
    said = "the API server rejects the removal of its scheduling gate: the policy of the team denies it"
    assert cluster.reason("refused") == said
    assert cluster.notes == [f"refused: {said}"]
    assert cluster.holders() == []
    cluster.create("other", request="0.5")
    await cluster.rounds(600)
    assert cluster.placed() == ["other"]
    assert cluster.tried.count("refused") <= 12

    del cluster.pods["other"]
    cluster.store.change("node-a", lambda node: ledger.release(node, [entry.id for entry in node.allocations]))
    cluster.trouble.clear()
    await cluster.rounds(ungater.MAX_BACKOFF_SECONDS + 1)
    assert cluster.placed() == cluster.holders() == ["refused"]


async def test_unanswered_ungating_keeps_the_share_and_backs_off() -> None:
    cluster = Cluster()
    cluster.create("waits", request="0.8")
    cluster.trouble["waits"] = AWAY
    await cluster.rounds(600)
    assert cluster.holders() == ["waits"]
    assert cluster.reason("waits") == "its scheduling gate could not be removed yet: etcdserver: request timed out"
    assert len(cluster.tried) <= ungater.PATCH_ATTEMPTS * 12
    cluster.trouble.clear()
    await cluster.rounds(ungater.MAX_BACKOFF_SECONDS + 1)
    assert cluster.placed() == ["waits"]


async def test_pod_with_an_unanswered_patch_keeps_its_share() -> None:
    cluster = Cluster()
    cluster.create("waits", request="0.8")
    cluster.takes_reasons = False  # so that this version of the pod stays
    cluster.trouble["waits"] = AWAY
    await cluster.rounds(1)
    cluster.trouble["waits"] = DENIED
    await cluster.rounds(ungater.IN_FLIGHT_SECONDS - 2)
    assert cluster.holders() == ["waits"]
    await cluster.rounds(ungater.MAX_BACKOFF_SECONDS)
    assert cluster.holders() == []


async def test_pod_with_mismatched_annotations_keeps_no_gpu() -> None:
    cluster = Cluster()
    cluster.create("changed", request="0.8")
    cluster.give("changed", request=80, memory_gib=80)
    cluster.pods["changed"]["metadata"]["annotations"][contract.REQUEST] = "0.3"
    cluster.create("other", request="0.5")
    await cluster.rounds(2)
    assert cluster.reason("changed").startswith("its gpushare.io annotations no longer match the resources")
    assert cluster.placed() == cluster.holders() == ["other"]


async def test_share_for_other_containers_is_replaced() -> None:
    cluster = Cluster()
    cluster.create("waits", request="0.8")
    cluster.pods["waits"]["spec"]["containers"][0]["name"] = "renamed"
    cluster.give("waits", request=80, memory_gib=80)
    await cluster.rounds(10)
    assert cluster.placed() == cluster.holders() == ["waits"]
    assert "a-waits" not in cluster.pods["waits"]["metadata"]["annotations"].values()


@pytest.mark.parametrize("refused", [["worker-0"], ["worker-0", "worker-1"]], ids=["one", "all"])
async def test_rejected_gang_releases_its_shares_unless_members_run(
    refused: list[str],
) -> None:
    cluster = Cluster()
    for name in ("worker-0", "worker-1"):
        cluster.create(name, request="0.4", group="ring", group_size="2")
    cluster.trouble.update(dict.fromkeys(refused, DENIED))
    await cluster.rounds(600)
    running = sorted({"worker-0", "worker-1"} - set(refused))
    assert cluster.placed() == running
    assert cluster.holders() == (["worker-0", "worker-1"] if running else [])
    assert "the policy of the team denies it" in cluster.reason("worker-0")
    assert len(cluster.tried) <= 25
    cluster.trouble.clear()
    await cluster.rounds(ungater.MAX_BACKOFF_SECONDS + 1)
    assert cluster.placed() == ["worker-0", "worker-1"]
