"""Events between the reservation of a share and the storing of its pod: its GPUNode is deleted, or another pod claims
it.

A webhook after ours delays the pod for as long as the test wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract, ledger
from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.gpushare.cluster import waiting
from tests.webhook import other_webhook
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from webhook import review

pytestmark = pytest.mark.apiserver

HELD_UP = "held-up"  # the label of the pod
ATTEMPTS = 5


@dataclasses.dataclass
class Between:
    """A delayed pod: `reserved` is set once it has a share, and it continues once `go_on` is set."""

    cluster: Cluster
    api: api_client.ApiClient
    reserved: asyncio.Event
    go_on: asyncio.Event
    refuses: bool = False

    async def judge(self, request: review.AdmissionRequest) -> review.ReviewResponse:
        if HELD_UP not in (request["object"]["metadata"].get("labels") or {}):
            return await other_webhook.inject(request) if request.get("dryRun") else review.allow("passed")
        if contract.ALLOCATION not in request["object"]["metadata"]["annotations"]:
            return review.deny(403, "no share, no test")
        self.reserved.set()
        await self.go_on.wait()
        return review.deny(403, "not today") if self.refuses else review.allow("passed")

    async def begin(self, manifest: dict[str, Any]) -> asyncio.Task[dict[str, Any]]:
        """Create the pod until it is delayed with its share, and again if it has none, as on a slow disk."""
        manifest["metadata"]["labels"] = {HELD_UP: "true"}
        for _ in range(ATTEMPTS):
            storing = asyncio.create_task(self.create(manifest))
            await waiting.until(lambda: self.reserved.is_set() or storing.done())  # noqa: B023
            if self.reserved.is_set():
                return storing
            with pytest.raises(api_errors.Forbidden, match="no share"):
                await storing
            await self.until(lambda: self.cluster.node().allocations == ())  # what is written late is given back
        raise AssertionError(self.cluster.explain())

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        namespace = self.cluster.namespace
        manifest["metadata"]["namespace"] = namespace
        return await self.api.create(f"/api/v1/namespaces/{namespace}/pods", manifest)

    async def until(self, condition: Any, *, seconds: float = 20.0) -> None:
        await asyncio.to_thread(until, condition, self.cluster.explain, seconds=seconds)


@contextlib.asynccontextmanager
async def between(cluster: Cluster, directory: Path) -> AsyncIterator[Between]:
    async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        made = Between(cluster, api, asyncio.Event(), asyncio.Event())
        async with other_webhook.running(cluster, made.judge, directory):
            yield made


async def test_recreated_gpunode_includes_the_share_of_a_pod_in_flight(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start()
    async with between(cluster, tmp_path / "other") as on_its_way:
        storing = await on_its_way.begin(builders.pod("trainer", request="0.5", uuid="GPU-node-a-0"))
        (reserved,) = cluster.node().allocations
        await asyncio.to_thread(cluster.administrator.delete, f"{contract.GPUNODE_PATH}/node-a")
        await asyncio.to_thread(cluster.remake, builders.node())
        await on_its_way.until(cluster.is_open)
        assert [entry.id for entry in cluster.node().allocations] == [reserved.id]
        late = await on_its_way.create(builders.pod("late", request="0.7", uuid="GPU-node-a-0"))
        assert late["spec"]["schedulingGates"]
        on_its_way.go_on.set()
        stored = await storing
        assert stored["metadata"]["annotations"][contract.ALLOCATION] == reserved.id
        await on_its_way.until(cluster.is_settled)
        (held,) = cluster.node().allocations
        assert (held.id, held.pod.uid) == (reserved.id, stored["metadata"]["uid"])


async def test_reservation_of_a_pod_that_never_appears_expires(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start("--reservation-seconds=8")
    async with between(cluster, tmp_path / "other") as on_its_way:
        storing = await on_its_way.begin(builders.pod("trainer", request="0.5"))
        await asyncio.to_thread(cluster.administrator.delete, f"{contract.GPUNODE_PATH}/node-a")
        await asyncio.to_thread(cluster.remake, builders.node())
        await on_its_way.until(cluster.is_open)
        assert len(cluster.node().allocations) == 1
        on_its_way.refuses = True
        on_its_way.go_on.set()
        with pytest.raises(api_errors.Forbidden, match="not today"):
            await storing
        await on_its_way.until(lambda: cluster.node().allocations == (), seconds=60)


@pytest.mark.parametrize("comes_back", [True, False])
async def test_pod_with_a_missing_gpu_gets_an_event(cluster: Cluster, tmp_path: Path, comes_back: bool) -> None:
    cluster.start()
    other = dataclasses.replace(builders.node(), gpus=(dataclasses.replace(builders.gpu(), uuid="GPU-other"),))
    async with between(cluster, tmp_path / "other") as on_its_way:
        storing = await on_its_way.begin(builders.pod("trainer", request="0.5"))
        (reserved,) = cluster.node().allocations
        await asyncio.to_thread(cluster.administrator.delete, f"{contract.GPUNODE_PATH}/node-a")
        if comes_back:
            await asyncio.to_thread(cluster.remake, other)
            await on_its_way.until(cluster.is_open)
        on_its_way.go_on.set()
        await storing
        await on_its_way.until(lambda: bool(cluster.notes(contract.EVENT_LOST)))
    (said,) = cluster.notes(contract.EVENT_LOST)
    gone = f'could not be restored: node-a has no GPU "{reserved.gpu_uuids[0]}"'
    assert (gone if comes_back else "GPUNode node-a, which had its share, does not exist") in said
    if comes_back:
        assert cluster.node().allocations == ()
        cluster.create(builders.pod("next", request="1"))
    else:
        cluster.remake(builders.node())  # and when it comes back after all, the share is there again
        until(lambda: cluster.is_settled(), cluster.explain)
        assert [entry.id for entry in cluster.node().allocations] == [reserved.id]
    assert ledger.violations(cluster.node()) == []


async def test_one_of_several_claimants_gets_the_reservation(cluster: Cluster, tmp_path: Path) -> None:
    started = cluster.start()
    unnamed = builders.pod(request="0.5")
    del unnamed["metadata"]["name"]
    unnamed["metadata"]["generateName"] = "made-"
    text = json.dumps(unnamed)
    async with between(cluster, tmp_path / "other") as on_its_way:
        owned = json.loads(text)
        owned["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "trainers", "uid": "owner-1", "controller": True}
        ]
        storing = await on_its_way.begin(owned)
        (reserved,) = cluster.node().allocations
        copies = [json.loads(text) for _ in range(2)]
        for copy in copies:
            copy["metadata"]["annotations"] |= {contract.ALLOCATION: reserved.id, contract.NODE: "node-a"}
        claimed = await asyncio.gather(*map(on_its_way.create, copies))
        assert {pod["metadata"]["annotations"][contract.ALLOCATION] for pod in claimed} == {reserved.id}
        assert started.reviews()["kept"] == 2
        await on_its_way.until(lambda: all(entry.pod.uid for entry in cluster.node().allocations))
        on_its_way.go_on.set()
        conflicts = await storing
    names = {pod["metadata"]["name"] for pod in claimed}
    # A pod with an owner is recreated; the other one stays, and gets an Event.
    until(lambda: {pod["metadata"]["name"] for pod in cluster.pods()} == names, cluster.explain)
    assert conflicts["metadata"]["name"] not in names
    until(lambda: len(cluster.notes(contract.EVENT_LOST)) == 2, cluster.explain)
    (held,) = cluster.node().allocations
    assert held.pod.name in names
    said = f"names the allocation {reserved.id}, which belongs to {cluster.namespace}/{held.pod.name}: it has no share"
    assert all(note.startswith(said) for note in cluster.notes(contract.EVENT_LOST))
    evicted = "evicted, because another pod holds its share: ReplicaSet trainers recreates it"
    until(lambda: cluster.notes(contract.EVENT_REPLACED) == [evicted], cluster.explain)
    cluster.delete(held.pod.name)  # then the other one, which names it, may have it
    (left,) = names - {held.pod.name}
    until(lambda: [entry.pod.name for entry in cluster.node().allocations] == [left], cluster.explain)
