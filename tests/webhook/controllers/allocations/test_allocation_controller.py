"""What is not in the placer's copy of the pods is asked of the API server before anything is taken away."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
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
from webhook.controllers.allocations import allocation_controller
from webhook.controllers.allocations.allocation_controller import AllocationController
from webhook.store.api_store import ApiStore

pytestmark = pytest.mark.apiserver

SLOW = "slow"
ATTEMPTS = 5


class Halting(api_client.ApiClient):
    """An API server that does not say what became of the pods called `SLOW` until it may."""

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
    """An allocation controller whose copy of the pods is empty, whatever there is."""

    def __init__(self, api: Halting) -> None:
        self.api = api
        self.measures = metrics.Metrics()
        self.store = ApiStore(api, self.measures)
        self.store.pods = informer.Part(informer.Informer(api, "/api/v1/namespaces/kube-system/pods"), "ours")
        recorder = events.Recorder(api, controller="gpushare.io/test", instance="test")
        self.now = 1000.0
        self.allocations_controller = AllocationController(
            api, self.store, recorder, self.measures, lifetime_seconds=60.0, clock=lambda: self.now
        )

    async def keep(self) -> None:
        """Look, and look again when what was reserved the first time has had its time."""
        await self.allocations_controller.keep(self.allocations_controller.look())
        self.now += 60.0
        await self.allocations_controller.keep(self.allocations_controller.look())

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
    """Create a pod that has its share at once; there is no placer for one that comes without, as on a slow disk."""
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
        assert made.measures.registry.get_sample_value(
            "gpushare_placer_allocations_total", {"change": "released"}
        ) == pytest.approx(2)


async def test_a_pod_that_came_late_and_unseen_is_confirmed_instead_of_lapsing(cluster: Cluster) -> None:
    cluster.start("--no-placer")
    pod = create_reserved(cluster, builders.pod(request="0.5"))
    late = json.dumps([{"op": "replace", "path": "/spec/allocations/0/reservedUntil", "value": "1970-01-01T00:00:01Z"}])
    cluster.kubectl("patch", "gpunode", "node-a", "--type=json", f"--patch={late}")
    async with blind(cluster) as made:
        await waiting.until(lambda: [until for _, until in made.held().values()] == [1.0])
        await made.keep()
        assert list(made.held().values()) == [(pod["metadata"]["uid"], None)]


async def test_what_is_known_to_be_gone_is_free_while_others_are_asked_about(cluster: Cluster) -> None:
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


async def test_an_api_server_with_too_much_to_do_is_asked_again_soon_and_not_about_all(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation_controller, "QUESTIONS_AT_ONCE", 2)
    async with blind(cluster) as made:
        for number in range(8):
            await made.hold(f"a{number}", PodRef(cluster.namespace, f"busy-{number}", f"uid-{number}"), until=None)
        made.api.busy = True
        controller = made.allocations_controller
        again = await controller.keep(controller.look())
        assert 0 < made.api.refused <= 2
        assert again is not None
        assert again - made.now <= allocation_controller.UNANSWERED_SECONDS
        assert len(made.held()) == 8
        made.api.busy = False
        await controller.keep(controller.look())
        assert made.held() == {}


async def test_what_somebody_came_for_at_the_last_moment_is_not_told_as_expired(cluster: Cluster) -> None:
    async with blind(cluster) as made:
        await made.hold("lapsed", PodRef(cluster.namespace), until=999.0)
        controller = made.allocations_controller
        await controller.keep(controller.look())
        await made.hold("second", PodRef(cluster.namespace, SLOW, "its-uid"), until=None)
        made.now += 60.0
        keeping = asyncio.create_task(controller.keep(controller.look()))
        await asyncio.wait_for(made.api.asked.wait(), 20)
        holder = PodRef(cluster.namespace, "late", "a-uid")
        await made.store.commit("node-a", lambda node: ledger.confirm(node, {"lapsed": holder}))
        made.api.may.set()
        await keeping
        assert made.held() == {"lapsed": ("a-uid", None)}
        expired = {"change": "expired"}
        assert not made.measures.registry.get_sample_value("gpushare_placer_allocations_total", expired)
