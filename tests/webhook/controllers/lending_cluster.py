"""A cluster in memory whose node lends GPUs of another device plugin."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from gpushare import borrowing, codec, contract, ledger
from gpushare.borrowing import Placeholder
from gpushare.cluster import api_client, api_errors
from gpushare.nodefilters import NodeSpec, PodInfo
from gpushare.refusal import Refusal
from tests import builders
from tests.config import manifests
from tests.webhook.controllers.test_demand_controller import NOW
from webhook.controllers.borrow import placeholders
from webhook.controllers.borrow.borrow_controller import BorrowController, BorrowSettings
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

TEMPLATE = next(
    made["template"]
    for made in yaml.safe_load_all((manifests.CONFIG / "components/borrow/template.yaml").read_text())
    if made["kind"] == "PodTemplate"
)


NODE = "node-a"


class Cluster:
    """A node of another device plugin, its scheduler, kubelet and agent, and the controller."""

    def __init__(self, *, gpus: int = 2, label: str = "2", max_gpus: int = 16, **labels: str) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.undeletable = set[str]()
        self.now, self.told, self._created = 0.0, list[tuple[str, str, str]](), 0
        node = builders.node(NODE, gpus=gpus, owner=contract.OTHER_OWNER)
        self.store = MemoryStore([codec.to_document(node)])
        made = builders.node_object(NODE, labels={contract.BORROW_LABEL: label} | labels)
        made["status"]["allocatable"][contract.BORROWED_RESOURCE] = str(gpus)
        self.spec = NodeSpec.from_manifest(made)
        self.store.chooser.cache.put_node_spec(NODE, self.spec)
        self.reservation = Reservation(self.store, policy="pack")
        api: Any = self
        self.controller = BorrowController(
            api,
            self.store,
            self.reservation,
            BorrowSettings(max_gpus, idle_seconds=60.0),
            warn=self.warn,
            clock=lambda: self.now,
            wall_clock=lambda: NOW + self.now,
        )

    @property
    def events(self) -> list[tuple[str, str]]:
        """Return reason and note of each Event."""
        return [(reason, note) for _, reason, note in self.told]

    def warn(self, about: str | Placeholder, reason: str, note: str) -> None:
        self.told.append((about if isinstance(about, str) else about.name, reason, note))

    async def get(self, path: str) -> dict[str, Any]:
        assert path == placeholders.TEMPLATE_PATH
        return {"template": TEMPLATE}

    async def list(
        self, path: str, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        assert path == placeholders.PODS_PATH
        return api_client.ObjectList([keep(made) for made in self.pods.values()], "1")

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        assert path == placeholders.PODS_PATH
        self._created += 1
        name = f"p{self._created}"
        created = datetime.datetime.fromtimestamp(NOW + self.now, datetime.UTC).isoformat()
        identity = {"name": name, "uid": name, "creationTimestamp": created}
        self.pods[name] = {**body, "metadata": {**body["metadata"], **identity}, "status": {}}
        return self.pods[name]

    async def patch(self, path: str, body: Any) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        ((label, value),) = body["metadata"]["labels"].items()
        labels = {key: old for key, old in self.pods[name]["metadata"]["labels"].items() if key != label}
        self.pods[name]["metadata"]["labels"] = labels | ({label: value} if value else {})
        return self.pods[name]

    async def delete(self, path: str, *, uid: str | None = None, grace_seconds: int | None = None) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        assert uid == name
        if name in self.undeletable:
            raise api_errors.Unavailable("it is overloaded")
        made = self.pods[name]
        if grace_seconds is not None or not made["spec"].get("nodeName"):
            return self.end(name)
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return made

    def end(self, name: str) -> dict[str, Any]:
        """End a placeholder; the agent reports its GPU as another owner's."""
        if tuple(self.store.stored()):
            self.report(name, contract.OTHER_OWNER)
        self.store.chooser.cache.put(name, None)
        return self.pods.pop(name)

    def end_marked(self) -> None:
        """End the placeholders that are marked, as the agent does; the kubelet restarts those that do not leave."""
        (node,) = self.store.stored()
        leaving = [name for name, made in self.pods.items() if "deletionTimestamp" in made["metadata"]]
        for name in leaving:
            if borrowing.may_end(node, name):
                self.end(name)

    def bind(self, name: str, index: int) -> None:
        """Give a GPU to a placeholder; the agent reports it."""
        self.pods[name]["spec"]["nodeName"] = NODE
        self.store.chooser.cache.put(name, PodInfo.from_manifest(self.pods[name], NODE))
        self.report(name, name, index=index)

    def report(self, name: str, owner: str, *, index: int | None = None) -> None:
        def change(node: Any) -> Any:
            gpus = tuple(
                dataclasses.replace(gpu, owner=owner) if gpu.owner == name or gpu.index == index else gpu
                for gpu in node.gpus
            )
            return dataclasses.replace(node, gpus=gpus).borrowing(node.borrowed)

        self.store.change(NODE, change)

    def bind_unreported(self, name: str) -> None:
        """Give a GPU to a placeholder; the agent has not reported it yet."""
        self.pods[name]["spec"]["nodeName"] = NODE
        self.store.chooser.cache.put(name, PodInfo.from_manifest(self.pods[name], NODE))

    def bind_whole(self, count: int) -> None:
        """Give GPUs to a pod of the other plugin."""
        made = builders.pod("whole", uid="whole")
        made["spec"]["containers"][0]["resources"] = {"limits": {contract.BORROWED_RESOURCE: str(count)}}
        self.store.chooser.cache.put("whole", PodInfo.from_manifest(made, NODE))

    async def round(self, *waiting: dict[str, Any], has_agent: bool = True, together: int = 1) -> Sequence[str]:
        """Run a round of the placer; return the end of each pod's reason, "" for a pod that is placed.

        asked: the pods that a GPU is asked for.
        """
        if has_agent:
            self.end_marked()
        await self.controller.tend()
        refused = []
        for made in waiting:
            waits = Pod.from_manifest(made)
            if waits.group:  # of a gang that does not fit
                refused.append((waits, Refusal("x", together=together)))
                continue
            outcome = await self.reservation.reserve(waits.manifest, waits.request, waits.ref)  # type: ignore[arg-type]
            if isinstance(outcome, Refusal):
                refused.append((waits, dataclasses.replace(outcome, reason="x")))
        asked, others = await self.controller.reconcile(refused)
        self.asked = [waits.ref.name for waits, _ in asked]
        ends = {waits.ref.uid: why.reason.removeprefix("x") for waits, why in (*asked, *others)}
        return [ends.get(made["metadata"]["uid"], "") for made in waiting]

    def end_shares(self) -> None:
        self.store.change(NODE, lambda node: ledger.release(node, [entry.id for entry in node.allocations]))

    @property
    def used(self) -> dict[int, int]:
        """Return the compute that shares have, by index of the GPU."""
        (node,) = self.store.stored()
        used = ledger.use(node)
        return {gpu.index: used[gpu.uuid].request_percent for gpu in node.gpus if used[gpu.uuid].holders}
