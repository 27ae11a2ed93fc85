"""Before an allocation is released because the placer's cache lacks its pod, the API server is asked."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpushare import contract, ledger
from gpushare.allocation import PodRef
from gpushare.cluster import api_client, api_connection, api_errors, events, informer, transport
from tests import builders
from tests.gpushare.cluster import waiting
from tests.webhook import replica
from tests.webhook.conftest import Cluster
from webhook import metrics
from webhook.controllers import allocation_controller
from webhook.controllers.allocation_controller import AllocationController
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.store.api_store import ApiStore

pytestmark = pytest.mark.apiserver

SLOW = "slow"
ATTEMPTS = 5


class Halting(api_client.ApiClient):
    """An API client that waits with reads of pods called `SLOW` until `may` is set."""

    def __init__(self, connections: transport.Transport) -> None:
        super().__init__(connections)
        self.may, self.asked = asyncio.Event(), asyncio.Event()
        self.busy, self.refused = False, 0

    async def get(self, path: str, query: api_client.Query | None = None) -> dict[str, Any]:
        if path.endswith(f"/{SLOW}"):
            self.asked.set()
            await self.may.wait()
        if self.busy and "/pods/busy-" in path:
            self.refused += 1
            raise api_errors.Unavailable("too many requests", status=429, reason="TooManyRequests")
        return await super().get(path, query)


class Blind:
    """An allocation controller whose cache of pods is always empty."""

    def __init__(self, api: Halting) -> None:
        self.api = api
        self.metrics = metrics.Metrics()
        self.store = ApiStore(api, self.metrics)
        self.store.pods = informer.Part(informer.Informer(api, "/api/v1/namespaces/kube-system/pods"), "shared")
        recorder = events.Recorder(api, controller="gpushare.io/test", instance="test")
        self.now = 1000.0
        self.touched_nodes = TouchedNodes()
        self.store.pods.subscribe(self.touched_nodes.update_pod)
        self.controller = AllocationController(
            api, self.store, self.touched_nodes, recorder, self.metrics, lifetime_seconds=60.0, clock=lambda: self.now
        )

    async def reconcile(self) -> float | None:
        """Do one round of the controller."""
        touched = self.touched_nodes.collect(self.store.stored(), also=self.controller.unconfirmed)
        return await self.controller.reconcile(touched)

    async def keep(self) -> None:
        """Do a round, and another one after the lifetime of a reservation."""
        await self.reconcile()
        self.now += 60.0
        await self.reconcile()

    async def hold(self, identity: str, holder: PodRef, *, until: float | None, on: str = "node-a") -> None:
        entry = builders.allocation(identity, f"GPU-{on}-0", reserved_until=until, request=10, memory_gib=1)
        entry = dataclasses.replace(entry, pod=holder)
        await self.store.commit(on, lambda node: ledger.reserve(node, entry))

    def held(self, name: str = "node-a") -> dict[str, tuple[str, float | None]]:
        (node,) = (gpunode for gpunode in self.store.stored() if gpunode.name == name)
        return {entry.id: (entry.pod.uid, entry.reserved_until) for entry in node.allocations}


@contextlib.asynccontextmanager
async def blind(cluster: Cluster) -> AsyncIterator[Blind]:
    server = await api_connection.find(str(cluster.administrator.kubeconfig))
    connections = transport.Transport(server, user_agent="gpushare-test")
    made = Blind(Halting(connections))
    running = asyncio.create_task(made.store.run())
    try:
        async with asyncio.timeout(60):
            await made.store.synced()
            yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.store.close()
        await connections.close()


def create_reserved(cluster: Cluster, manifest: dict[str, Any]) -> dict[str, Any]:
    """Create a pod that has its share at once, because no placer runs that could place it later."""
    for _ in range(ATTEMPTS):
        pod = cluster.create(manifest)
        identity = pod["metadata"]["annotations"].get(contract.ALLOCATION)
        if identity is None:
            cluster.delete(pod["metadata"]["name"])
        reserved = [] if identity is None else [identity]  # what is written late is given back
        replica.until(lambda: [entry.id for entry in cluster.node().allocations] == reserved, cluster.explain)  # noqa: B023
        if identity is not None:
            return pod
    raise AssertionError(cluster.explain())


async def test_the_share_of_a_living_pod_is_kept(cluster: Cluster) -> None:
    cluster.start("--no-placer")
    pod = create_reserved(cluster, builders.pod(request="0.5"))
    async with blind(cluster) as made:
        await waiting.until(lambda: bool(made.held()))  # its list may be a moment behind
        ((identity, (_, until)),) = made.held().items()
        assert until is not None
        holder = PodRef(cluster.namespace, "trainer", pod["metadata"]["uid"])
        await made.hold("held", holder, until=None)
        await made.hold("of-a-namesake", PodRef(cluster.namespace, "trainer", "another-uid"), until=None)
        await made.hold("of-nobody", PodRef(cluster.namespace, "gone", "its-uid"), until=None)
        await made.hold("lapsed", PodRef(cluster.namespace), until=999.0)
        await made.keep()
        assert set(made.held()) == {identity, "held"}
        assert made.metrics.registry.get_sample_value(
            "gpushare_placer_allocations_total", {"change": "released"}
        ) == pytest.approx(2)


async def test_late_pod_missing_from_the_cache_is_confirmed(cluster: Cluster) -> None:
    cluster.start("--no-placer")
    pod = create_reserved(cluster, builders.pod(request="0.5"))
    late = {"op": "replace", "path": "/spec/allocations/0/reservedUntil", "value": "1970-01-01T00:00:01Z"}
    cluster.change("node-a", [late])
    async with blind(cluster) as made:
        await waiting.until(lambda: [until for _, until in made.held().values()] == [1.0])
        await made.keep()
        assert list(made.held().values()) == [(pod["metadata"]["uid"], None)]


async def test_confirmed_releases_do_not_wait_for_other_reads(cluster: Cluster) -> None:
    cluster.add_node(builders.node("node-b"))
    async with blind(cluster) as made:
        await made.hold("first", PodRef(cluster.namespace, "gone", "a-uid"), until=None)
        await made.hold("second", PodRef(cluster.namespace, SLOW, "its-uid"), until=None, on="node-b")
        freed = asyncio.Event()
        made.store.on_change(lambda: None if made.held() else freed.set())
        keeping = asyncio.create_task(made.keep())
        async with asyncio.timeout(20):
            await freed.wait()
        assert set(made.held("node-b")) == {"second"}
        made.api.may.set()
        await keeping
        assert made.held("node-b") == {}


async def test_overloaded_api_server_gets_few_reads_and_a_retry(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation_controller, "MAX_CONCURRENT_READS", 2)
    async with blind(cluster) as made:
        for number in range(8):
            await made.hold(f"a{number}", PodRef(cluster.namespace, f"busy-{number}", f"uid-{number}"), until=None)
        made.api.busy = True
        again = await made.reconcile()
        assert 0 < made.api.refused <= 2
        assert again is not None
        assert again - made.now <= allocation_controller.UNANSWERED_SECONDS
        assert len(made.held()) == 8
        made.api.busy = False
        await made.reconcile()
        assert made.held() == {}


async def test_late_claim_is_not_reported_as_expired(cluster: Cluster) -> None:
    async with blind(cluster) as made:
        await made.hold("lapsed", PodRef(cluster.namespace), until=999.0)
        await made.reconcile()
        await made.hold("second", PodRef(cluster.namespace, SLOW, "its-uid"), until=None)
        made.now += 60.0
        keeping = asyncio.create_task(made.reconcile())
        await asyncio.wait_for(made.api.asked.wait(), 20)
        holder = PodRef(cluster.namespace, "late", "a-uid")
        await made.store.commit("node-a", lambda node: ledger.confirm(node, {"lapsed": holder}))
        made.api.may.set()
        await keeping
        assert made.held() == {"lapsed": ("a-uid", None)}
        expired = {"change": "expired"}
        assert not made.metrics.registry.get_sample_value("gpushare_placer_allocations_total", expired)
