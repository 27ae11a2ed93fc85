"""A chain of mutating webhooks that includes gpushare's, called as an API server calls them, on nodes in memory."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jsonpatch

from gpushare import codec, contract, ledger
from gpushare.allocation import Allocation
from tests import builders
from webhook import admission, metrics, review
from webhook.store import memory_store, reservation

Pod = dict[str, Any]
Webhook = Callable[[Pod], None]  # changes the pod in place; idempotent
TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


@dataclasses.dataclass(frozen=True, slots=True)
class Admitted:
    """A pod as it would be stored, and gpushare's answers in the order of its calls."""

    pod: Pod
    answers: tuple[review.ReviewResponse, ...]

    @property
    def annotations(self) -> dict[str, str]:
        return self.pod["metadata"].get("annotations") or {}

    @property
    def gates(self) -> list[str]:
        return [gate["name"] for gate in self.pod["spec"].get("schedulingGates") or []]

    @property
    def sharers(self) -> list[str]:
        """Return its containers with resources of gpushare's."""
        everyone = (*self.pod["spec"]["containers"], *self.pod["spec"].get("initContainers", []))
        return [
            container["name"]
            for container in everyone
            if any(key.startswith(contract.PREFIX) for key in (container.get("resources") or {}).get("limits") or {})
        ]


class Chain:
    """A chain of webhooks; `before` and `behind`: the other webhooks, by the order of their configurations' names."""

    def __init__(
        self, nodes: Iterable[dict[str, Any]], *, gpus: int = 2, storage: Iterable[dict[str, Any]] = ()
    ) -> None:
        machines = list(nodes)
        gpunodes = [codec.to_document(builders.node(machine["metadata"]["name"], gpus=gpus)) for machine in machines]
        self.store = memory_store.MemoryStore(gpunodes, machines, (), storage)
        reserving = reservation.Reservation(self.store, policy="fragmentation")
        self._admission = admission.Admission(self.store, reserving, metrics.Metrics())

    def review(self, manifest: Pod, **more: Any) -> review.ReviewResponse:
        """Return gpushare's response to one call."""
        request: dict[str, Any] = {
            "uid": "u",
            "operation": "CREATE",
            "namespace": "default",
            "object": copy.deepcopy(manifest),
        }
        return asyncio.run(self._admission.answer(cast("review.AdmissionRequest", request | more)))

    def create(self, manifest: Pod, *, before: Iterable[Webhook] = (), behind: Iterable[Webhook] = ()) -> Admitted:
        """Create a pod in two rounds: in the second, a webhook is reinvoked if another one has changed the pod after
        it.
        """
        pod, answers = copy.deepcopy(manifest), list[review.ReviewResponse]()
        chain: list[Webhook | None] = [*before, None, *behind]
        last: list[Pod] = []
        for at, webhook in enumerate([*chain, *chain]):
            if at >= len(chain) and pod == last[at - len(chain)]:
                continue
            if webhook is not None:
                webhook(pod)
            else:
                answer = self.review(pod)
                assert answer.allowed, answer.message
                answers.append(answer)
                pod = jsonpatch.apply_patch(pod, copy.deepcopy(list(answer.patch)))
            last.append(copy.deepcopy(pod))
        return Admitted(pod, tuple(answers))

    def confirm(self) -> None:
        """Store all pods so far, and let the webhook see them."""
        for name, entries in self.allocations().items():
            seen = {entry.id: dataclasses.replace(entry.pod, uid=f"uid-{entry.id}") for entry in entries}
            self.store.change(name, functools.partial(ledger.confirm, pods=seen))

    def allocations(self) -> dict[str, list[Allocation]]:
        """Return all allocations by node."""
        return {view.node.name: list(view.node.allocations) for view in self.store.views() if view.node.allocations}


def node(name: str, labels: Mapping[str, str] | None = None, *, cpu: str = "8", tainted: bool = False) -> Any:
    """Return a ready Node with two GPUs and an agent."""
    taints = [TAINT] if tainted else []
    return builders.node_object(name, gpus=2, labels=labels, allocatable={"cpu": cpu}, spec={"taints": taints})


def sidecar(at: int, name: str = "proxy", **resources: Any) -> Webhook:
    """Inject a container at an index; 0 is the front."""

    def inject(pod: Pod) -> None:
        containers = pod["spec"]["containers"]
        if all(container["name"] != name for container in containers):
            injected = {"name": name, "image": "example.com/proxy:1", **({"resources": resources} if resources else {})}
            containers.insert(len(containers) if at < 0 else at, injected)

    return inject


def gate(name: str) -> Webhook:
    """Add a scheduling gate, as Kueue does."""

    def hold_back(pod: Pod) -> None:
        gates = pod["spec"].setdefault("schedulingGates", [])
        if all(known["name"] != name for known in gates):
            gates.append({"name": name})

    return hold_back


def selector(key: str, value: str) -> Webhook:
    """Add a label to the node selector."""

    def select(pod: Pod) -> None:
        pod["spec"].setdefault("nodeSelector", {})[key] = value

    return select


def requests(resource: str, amount: str) -> Webhook:
    """Add a resource request to each container of the pod."""

    def ask(pod: Pod) -> None:
        for container in pod["spec"]["containers"]:
            if container["name"] == "main":
                container.setdefault("resources", {}).setdefault("requests", {})[resource] = amount

    return ask


def annotate(key: str, value: str) -> Webhook:
    """Add an annotation if it is missing."""

    def add(pod: Pod) -> None:
        pod["metadata"].setdefault("annotations", {}).setdefault(key, value)

    return add
