"""Pods and a ledger in memory, where other components act at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jsonpatch

from gpushare import codec, contract, ledger
from gpushare import request as requests
from gpushare.cluster import api_client
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import share_resources
from gpushare.placement import exclusive_gpus
from gpushare.pod import PodJson
from gpushare.request import Request
from tests import builders
from webhook import metrics
from webhook.controllers import due_changes
from webhook.controllers.gated_pods import fairness
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.waiting_units import PodIndex
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation
from webhook.store.avoided_nodes import NO_AVOIDED, Avoided
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

START = 1_767_225_600.0  # 2026-01-01


class Cluster:
    """Pods and a ledger; the API server and the allocation controller act at once."""

    def __init__(
        self,
        *nodes: GpuNode,
        limits: fairness.OvertakeLimits = fairness.DEFAULT_LIMITS,
        avoided: Callable[[PodJson], Avoided] = lambda _: NO_AVOIDED,
        exclusive: Callable[[str], exclusive_gpus.ExclusiveBound | None] = lambda _: None,
    ) -> None:
        self.store = MemoryStore([codec.to_document(node) for node in nodes], avoided=avoided, bound=exclusive)
        self.pods: dict[str, dict[str, Any]] = {}
        self.index, self.seen = PodIndex(), dict[str, Pod]()
        self.read = dict[str, tuple[dict[str, Any], Pod]]()
        self.now = START
        self.told: dict[str, str] = {}
        self.order: list[str] = []  # names in the order of placement
        self.reservation = Reservation(self.store, policy="pack")
        self.scheduler = GatedPodScheduler(self, self.store, self.reservation, self, metrics.Metrics(), limits=limits)
        self.warned: dict[str, str] = {}

    def stored(self) -> dict[str, Pod]:
        """Return the pods as an informer shows them: an unchanged pod is the same object."""
        before = self.read
        self.read = {
            name: before[name] if name in before and before[name][0] is item else (item, Pod.from_manifest(item))
            for name, item in self.pods.items()
        }
        return {name: pod for name, (_, pod) in self.read.items()}

    async def open(self, pod: Pod, request: Request, placed: mutation.Placed) -> None:
        name = pod.ref.name
        self.pods[name] = dict(mutation.open_gate(self.pods[name], request, placed))
        self.order.append(name)

    async def get(self, path: str) -> dict[str, Any]:
        return self.pods[path.rsplit("/", 1)[1]]

    async def patch(self, path: str, body: Any, content_type: str = "") -> None:
        assert content_type == api_client.JSON_PATCH
        name = path.rsplit("/", 1)[1]
        self.pods[name] = jsonpatch.apply_patch(self.pods[name], body)
        self.order.append(name)

    def record(self, regarding: Mapping[str, Any], reason: str, note: str, **_: Any) -> None:
        if reason == contract.EVENT_GROUP_APART:
            self.warned[regarding["name"]] = note

    def create(self, name: str, *, priority: int = 0, **asked: Any) -> None:
        made = builders.pod(name, **asked)
        hours, rest = divmod(int(self.now - START), 3600)
        created = f"2026-01-01T{hours:02}:{rest // 60:02}:{rest % 60:02}Z"
        made["metadata"].update(uid=f"u-{name}", creationTimestamp=created)
        made["spec"].update(priority=priority, schedulingGates=[{"name": contract.SCHEDULING_GATE}])
        resources = share_resources.resources(requests.parse(made).demands[0], "main")
        made["spec"]["containers"][0]["resources"] = {"limits": resources, "requests": resources}
        self.pods[name] = made

    async def arrive(self, name: str, **asked: Any) -> None:
        """Create a pod that admission places at once if there is room, although others wait."""
        self.create(name, **asked)
        pod = self.stored()[name]
        assert isinstance(pod.request, Request)
        outcome = await self.reservation.reserve(pod.manifest, pod.request, pod.ref)
        if isinstance(outcome, mutation.Placed):
            await self.open(pod, pod.request, outcome)

    async def end(self, name: str) -> None:
        """End a pod: release its share and grow backfill reservations, in one write."""
        manifest = self.pods.pop(name)
        asked = {pod.ref.uid: pod.request for pod in self.stored().values() if isinstance(pod.request, Request)}

        def change(node: GpuNode) -> GpuNode:
            ids = [entry.id for entry in node.allocations if entry.pod.uid == manifest["metadata"]["uid"]]
            return backfill_reservation.grown(ledger.release(node, ids), asked)

        for view in list(self.store.views()):
            self.store.change(view.node.name, change)

    async def step(self) -> None:
        stored = self.stored()
        for name in self.seen.keys() | stored.keys():
            if self.seen.get(name) is not stored.get(name):
                self.index.update(self.seen.get(name), stored.get(name))
        self.seen = stored
        waiting = await self.scheduler.place(self.index, now=self.now)
        self.told = {pod.ref.name: refusal.reason for pod, refusal in waiting}
        nodes = [view.node for view in self.store.views()]
        assert [sentence for node in nodes for sentence in ledger.violations(node)] == []
        for entry in due_changes.find(nodes, self.stored().values(), now=0.0).release:
            ids = (entry.allocation.id,)
            self.store.change(entry.node, functools.partial(ledger.release, ids=ids))

    def waiting(self) -> list[str]:
        return [name for name, pod in self.pods.items() if contract.ALLOCATION not in pod["metadata"]["annotations"]]

    def shares(self) -> set[str]:
        entries = [entry for view in self.store.views() for entry in view.node.allocations]
        return {entry.pod.name for entry in entries if not entry.is_backfill_reservation}

    def held(self) -> dict[str, int]:
        entries = [entry for view in self.store.views() for entry in view.node.allocations]
        return {
            entry.pod.name: sum(share.request_percent for share in entry.shares)
            for entry in entries
            if entry.is_backfill_reservation
        }

    def others_where_held(self, name: str) -> dict[str, int]:
        """Return the compute of shares on each GPU that is reserved for this pod."""
        entries = [entry for view in self.store.views() for entry in view.node.allocations]
        uuids = {
            uuid
            for entry in entries
            if entry.is_backfill_reservation and entry.pod.name == name
            for uuid in entry.gpu_uuids
        }
        return {
            uuid: sum(
                share.request_percent
                for entry in entries
                if not entry.is_backfill_reservation
                for share in entry.shares
                if uuid in share.gpu_uuids
            )
            for uuid in uuids
        }
