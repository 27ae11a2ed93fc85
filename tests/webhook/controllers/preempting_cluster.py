"""A cluster in memory with preemption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpushare.cluster import api_client, api_errors
from gpushare.cluster.object_store import Key
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster
from webhook import metrics
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.preemption import preemptor
from webhook.controllers.preemption.preemptor import Preemptor
from webhook.pods.stored_pod import Pod

OWNER = {"kind": "ReplicaSet", "name": "owner", "uid": "owner", "controller": True}


class EvictionApi:
    """An API server that evicts: an evicted pod terminates until the test ends it."""

    def __init__(self, pods: dict[str, dict[str, Any]]) -> None:
        self.pods = pods
        self.budgets: list[dict[str, Any]] = []
        self.evicted: list[str] = []
        self.refusing: dict[str, api_errors.ClusterError] = {}  # by name of the pod

    async def get(self, path: str) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        if name not in self.pods:
            raise api_errors.NotFound("there is no such pod", status=404)
        return self.pods[name]

    async def list(
        self, path: str, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        assert path == preemptor.BUDGETS_PATH
        return api_client.ObjectList([keep(item) for item in self.budgets], "1")

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        name, word = path.split("/")[-2:]
        assert word == "eviction"
        if name in self.refusing:
            raise self.refusing[name]
        assert body["deleteOptions"]["preconditions"] == {"uid": f"u-{name}"}
        self.evicted.append(name)
        self.pods[name] = {**self.pods[name], "metadata": {**self.pods[name]["metadata"], "deletionTimestamp": "now"}}
        return {}


class Preempting(Cluster):
    """A cluster in memory with preemption."""

    def __init__(self, *nodes: GpuNode) -> None:
        super().__init__(*nodes)
        self.api: Any = EvictionApi(self.pods)
        self.evicted, self.refusing, self.budgets = self.api.evicted, self.api.refusing, self.api.budgets
        self.events: list[tuple[str, str]] = []
        self.time = 0.0
        self.lead()

    def lead(self) -> None:
        """Start another placer."""
        clock = lambda: self.time  # noqa: E731
        self.preemptor = Preemptor(self.api, self.store, Pods(self), self, metrics.Metrics(), "pack", clock=clock)
        self.scheduler = GatedPodScheduler(self, self.store, self.reservation, self, metrics.Metrics(), preempts=True)

    def record(self, regarding: Mapping[str, Any], reason: str, note: str, **_: Any) -> None:
        assert note
        self.events.append((regarding["name"], reason))

    async def run(self, name: str, *, priority: int = 0, owner: str = "ReplicaSet", **asked: Any) -> None:
        """Create a pod, which has to fit, and place it."""
        self.create(name, priority=priority, **asked)
        self.pods[name]["metadata"].update(
            ownerReferences=[OWNER | {"kind": owner}] if owner else [], labels={"app": name}
        )
        await self.step()
        assert name not in self.waiting()
        self.now += 1

    def ask(self, name: str, *, priority: int = 10, policy: str = "", **asked: Any) -> None:
        self.create(name, priority=priority, **asked)
        if policy:
            self.pods[name]["spec"]["preemptionPolicy"] = policy

    async def round(self) -> dict[str, str]:
        """Do a round with preemption; return the reasons of pods that wait."""
        await self.step()
        waiting = await self.preemptor.reconcile(
            [(self.stored()[name], Refusal(reason)) for name, reason in self.told.items()]
        )
        return {pod.ref.name: why.reason for pod, why in waiting}


class Pods(Mapping[Key, Pod]):
    """The pods of a cluster, as the informer has them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def _all(self) -> dict[Key, Pod]:
        return {Key(pod.ref.namespace, pod.ref.name): pod for pod in self._cluster.stored().values()}

    def __getitem__(self, key: Key) -> Pod:
        return self._all()[key]

    def __iter__(self) -> Any:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def budget(name: str, *, allowed: int) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": f"of-{name}"},
        "spec": {"selector": {"matchLabels": {"app": name}}},
        "status": {"disruptionsAllowed": allowed},
    }


async def full(*priorities: int, gpus: int = 2) -> Preempting:
    """Return a node with a running pod `p0`, `p1` … of each priority, on a GPU each."""
    cluster = Preempting(builders.node("node-a", gpus=gpus))
    for number, priority in enumerate(priorities):
        await cluster.run(f"p{number}", priority=priority, request="1")
    return cluster


def leave(cluster: Preempting, name: str) -> None:
    made = cluster.pods[name]
    cluster.pods[name] = {**made, "metadata": {**made["metadata"], "deletionTimestamp": "now"}}
