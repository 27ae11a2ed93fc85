"""World: the cluster in memory, to try things on: the rules, sentences and choices are the webhook's own.

The choice is made by the engine that the webhook uses, as far as numpy is there for it; without it by the reference,
which lets the same pods fit for the same reasons, and of several GPUs that fit may take another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpushare import contract, errors, fragmentation, ledger, node, placement, pod
from gpushare import request as requests
from gpushare.allocation import Allocation, PodRef
from gpushare.gpunode import GpuNode
from gpushare.mix import NO_HOST, Host
from gpushare.nodefilters import (
    NodeSpec,
    PodAffinity,
    PodInfo,
    PodKey,
    SchedulerCache,
    pod_requests,
    share_resources,
    volumes,
)
from gpushare.placement import NodeView, Placement
from gpushare.placement_profile import PlacementProfile
from gpushare.refusal import Refusal
from gpushare.request import Request
from kubectl_gpushare.planning import away, unplaced

WITHOUT_NUMPY = (
    "numpy is not installed, so of several GPUs that fit the webhook may choose another: install it beside the plugin"
)
_PLANNED = "planned-"  # how the ids begin of what was given here
Answer = Placement | Refusal
Judge = Callable[[str], str | None]
Storage = Mapping[str, Sequence[Mapping[str, Any]]]  # by kind


def exact() -> bool:
    """Whether the webhook's own engine is there, which chooses as the webhook does."""
    return importlib.util.find_spec("numpy") is not None


class World:
    """GPUNodes as views by name, with what is known of Nodes and pods. Not for threads.

    machines: Nodes; None where they could not be read: then every node will do. pods: those on nodes, for what they
    take of them; of ours also to be found by `manifest`. storage: claims, volumes and so on, by kind, where they are
    known; claims_are_all: what is not among the claims does not exist. profile: by what the webhook chooses.
    """

    def __init__(
        self,
        nodes: Iterable[GpuNode],
        machines: Iterable[node.NodeJson] | None = None,
        pods: Iterable[pod.PodJson] = (),
        storage: Storage | None = None,
        *,
        claims_are_all: bool = False,
        profile: PlacementProfile | None = None,
    ) -> None:
        self.views: dict[str, NodeView] = {}
        is_known = claims_are_all and storage is not None and volumes.CLAIM in storage
        self._cache: SchedulerCache | None = None
        if machines is not None:
            self._cache = SchedulerCache(is_full=self._is_full, knows_claims=lambda: is_known)
        self._profile = profile or PlacementProfile()
        self._engine = _engine()
        nodes, machines = list(nodes), None if machines is None else list(machines)
        self._away = away.of(nodes, machines)
        self._manifests: dict[str, pod.PodJson] = {}
        for machine in machines or ():
            assert self._cache is not None  # noqa: S101 - there are machines
            self._cache.put_machine(node.name(machine), NodeSpec.of(machine))
        pods = list(pods)
        if self._cache is not None and storage is not None:
            for kind, items in unaccounted(storage, pods).items():
                for item in items:
                    self._cache.put_storage(pod.namespaced_name(item), None, volumes.read({**item, "kind": kind}))
        for manifest in pods:
            self._manifests[_key(pod.uid(manifest), *pod.namespaced_name(manifest))] = manifest
            self._occupy(manifest)
        for gpu_node in nodes:
            self.put(NodeView.of(gpu_node))
        if self._engine is not None and self._profile.mix.weights:
            self._engine.learn(self._profile.mix)

    @property
    def policy(self) -> str:
        """The one for pods that name none."""
        return self._profile.policy

    def _is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        return name in self.views and self.views[name].is_full(amounts)

    def put(self, view: NodeView) -> None:
        """A node as it is from now on."""
        self.views[view.node.name] = view
        if self._cache is not None:
            self._cache.forget(view.node.name)
        if self._engine is not None:
            self._engine.update(view, room=self._room(view.node.name))

    @contextlib.contextmanager
    def instead(self, *changed: GpuNode) -> Iterator[None]:
        """For a while these nodes are as given here."""
        before = [self.views[gpu_node.name] for gpu_node in changed]
        for gpu_node in changed:
            self.put(NodeView.of(gpu_node))
        try:
            yield
        finally:
            for view in before:
                self.put(view)

    def machine(self, name: str) -> NodeSpec | None:
        """A Node, or None where there is none, or none were read."""
        return self._cache.machine(name) if self._cache is not None else None

    @contextlib.contextmanager
    def with_machine(self, changed: NodeSpec) -> Iterator[None]:
        """For a while this Node, which is there, is as given here."""
        assert self._cache is not None  # noqa: S101 - there are machines
        before = self._cache.machine(changed.name)
        self._cache.put_machine(changed.name, changed)
        try:
            yield
        finally:
            self._cache.put_machine(changed.name, before)

    def place(self, manifest: pod.PodJson, request: Request, *, judge: Judge | None = None) -> Answer:
        """Where the pod would go; a refusal has the nearest miss of each rule, or every candidate without numpy."""
        unfit = judge or self.judge(manifest, request)
        if self._engine is None:
            return placement.place(self.views.values(), request, policy=self.policy, unfit=unfit)
        answer: Answer = self._engine.place(request, host=self.host(manifest), policy=self.policy, unfit=unfit)
        return answer

    def refuse(self, manifest: pod.PodJson, request: Request) -> Answer:
        """The same with every candidate in a refusal; in the order of the nodes, and slower."""
        return placement.place(self.views.values(), request, unfit=self.judge(manifest, request))

    def judge(self, manifest: pod.PodJson, request: Request | None = None) -> Judge:
        """Why a node cannot take the pod at all, as the rest of a sentence, or None."""
        if self._cache is None:
            return placement.fits_anywhere
        itself = _key(pod.uid(manifest), *pod.namespaced_name(manifest))
        return self._cache.judge(*share_resources.of(manifest, request), itself=itself)

    def unknown_claims(self, manifests: Iterable[pod.PodJson]) -> list[str]:
        """A note, if some of these pods mount claims that are not known."""
        if self._cache is None:
            return []
        claims = (self._cache.unknown_claim(PodAffinity.of(manifest)) for manifest in manifests)
        names = [name for name in dict.fromkeys(claims) if name]
        return [f"volumes of claims that are not there yet, such as {names[0]}"] if names else []

    def take(self, manifest: pod.PodJson, request: Request, chosen: Placement) -> Callable[[], None]:
        """Let the pod, which is nowhere yet, have it; returns what undoes that. Raises `LedgerError` if it cannot."""
        before = self.views[chosen.node].node
        namespace, name = pod.namespaced_name(manifest)
        holder = PodRef(namespace or "default", name, pod.uid(manifest))
        identity = f"{_PLANNED}{len(before.allocations)}-{holder}"
        entry = chosen.allocation(request, allocation_id=identity, pod=holder, reserved_until=None)
        after = ledger.reserve(before, entry)
        self._occupy(manifest, chosen.node)
        self.put(NodeView.of(after))

        def undo() -> None:
            if self._cache is not None:
                self._cache.put(_key(pod.uid(manifest), *pod.namespaced_name(manifest)), None)
            self.put(NodeView.of(before))

        return undo

    def leave(self, manifest: pod.PodJson, name: str, entry: Allocation) -> Callable[[], None]:
        """Let a pod leave a node; returns what undoes that."""
        before = self.views[name]
        if self._cache is not None:
            self._cache.put(_key(pod.uid(manifest), *pod.namespaced_name(manifest)), None)
        self.put(NodeView.of(ledger.release(before.node, [entry.id])))

        def undo() -> None:
            self._occupy(manifest)
            self.put(before)

        return undo

    def manifest(self, entry: Allocation) -> pod.PodJson | None:
        """The pod of an allocation, if it was read."""
        return self._manifests.get(_key(entry.pod.uid, entry.pod.namespace, entry.pod.name))

    @property
    def engine(self) -> Any:
        """The `Fleet` that chooses; None without numpy."""
        return self._engine

    def usable(self) -> list[str]:
        """The nodes that are there and have GPUs."""
        return [name for name, view in self.views.items() if name not in self._away and view.node.gpus]

    def room_without(self, name: str, manifest: pod.PodJson) -> Any:
        """CPU, memory and pods that a node has room for if this pod, which is there, leaves it."""
        room = self._room(name)
        amounts = dict(PodKey.of(unplaced.successor(manifest)).amounts)
        cpu, memory = amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0)
        return dataclasses.replace(
            room, cpu_milli=room.cpu_milli + cpu, memory_bytes=room.memory_bytes + memory, pods=room.pods + 1
        )

    def fragmentation(self) -> fragmentation.Fragmentation:
        """Of the whole cluster, as `top` shows it."""
        return fragmentation.measure(
            card for view in self.views.values() if view.node.name not in self._away for card in view.cards()
        )

    def _occupy(self, manifest: pod.PodJson, where: str = "") -> None:
        if self._cache is None or pod.is_terminal(manifest):
            return
        where = where or str((manifest.get("spec") or {}).get("nodeName") or "")
        where = where or str(pod.annotations_of(manifest).get(contract.NODE, ""))
        if where:
            key = _key(pod.uid(manifest), *pod.namespaced_name(manifest))
            self._cache.put(key, PodInfo.of(share_resources.equipped(manifest), where))

    def _room(self, name: str) -> Any:
        from gpushare.placement.grid import Room

        known = None if self._cache is None else self._cache.room(name)
        return Room(*(known or ()))

    def host(self, manifest: pod.PodJson) -> Host:
        """What it asks of its node; nothing where it already takes that, as the scheduler cache knows it."""
        if self._cache is None or (manifest.get("spec") or {}).get("nodeName"):
            return NO_HOST
        amounts = dict(PodKey.of(manifest).amounts)
        return Host(amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0))


@dataclasses.dataclass(frozen=True, slots=True)
class RequestingPod:
    """A pod with what it asks for."""

    manifest: pod.PodJson
    request: Request

    @classmethod
    def of(cls, manifest: pod.PodJson) -> RequestingPod:
        """Raises `RequestError` if it asks for nonsense."""
        return cls(manifest, requests.parse(manifest))

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return pod.namespaced_name(self.manifest)[0]

    @property
    def request_gpus(self) -> float:
        """The compute that it asks for, in GPUs."""
        return sum(demand.gpus * demand.share.request_percent for demand in self.request.demands) / 100

    def with_annotation(self, key: str, value: str | None) -> RequestingPod | None:
        """The same pod with one annotation written otherwise, or (None) left out; None if that is no request."""
        metadata = self.manifest.get("metadata") or {}
        annotations = {**pod.annotations_of(self.manifest)}
        if value is None:
            annotations.pop(key, None)
        else:
            annotations[key] = value
        changed = {**self.manifest, "metadata": {**metadata, "annotations": annotations}}
        try:
            return RequestingPod.of(changed) if pod.asks_for_share(changed) else None
        except errors.RequestError:
            return None


def unaccounted(storage: Storage, pods: Iterable[pod.PodJson]) -> Storage:
    """The same without the attachments of what these pods mount where they are: those go where the pods go."""
    bound = {
        pod.namespaced_name(claim): str((claim.get("spec") or {}).get("volumeName") or "")
        for claim in storage.get(volumes.CLAIM, ())
    }
    mounted = {
        ((manifest.get("spec") or {}).get("nodeName"), bound.get((pod.namespaced_name(manifest)[0], mount.claim)))
        for manifest in pods
        for mount in volumes.mounts(manifest)
    }

    def goes(attachment: Mapping[str, Any]) -> bool:
        spec = attachment.get("spec") or {}
        return (spec.get("nodeName"), (spec.get("source") or {}).get("persistentVolumeName")) in mounted

    left = [attachment for attachment in storage.get(volumes.ATTACHMENT, ()) if not goes(attachment)]
    return {**storage, volumes.ATTACHMENT: left}


def without(nodes: Sequence[GpuNode], manifest: pod.PodJson) -> list[GpuNode]:
    """The nodes without what the pod has, and without what is kept free for it: as if it came now."""
    identity, name = pod.uid(manifest), pod.namespaced_name(manifest)

    def is_its(entry: Allocation) -> bool:
        if entry.pod.uid and identity:
            return entry.pod.uid == identity
        return bool(entry.pod.name) and (entry.pod.namespace, entry.pod.name) == name

    return [
        ledger.release(gpu_node, [entry.id for entry in gpu_node.allocations if is_its(entry)])
        if any(map(is_its, gpu_node.allocations))
        else gpu_node
        for gpu_node in nodes
    ]


def is_planned(entry: Allocation) -> bool:
    """Whether it was given in memory alone."""
    return entry.id.startswith(_PLANNED)


def gpus(chosen: Placement, views: Mapping[str, NodeView]) -> str:
    """A placement in a word: `gpu-1/0`, or `gpu-1/0,2`."""
    cards = views[chosen.node].node.gpu_by_uuid()
    indexes = sorted({cards[uuid].index for share in chosen.shares for uuid in share.gpu_uuids if uuid in cards})
    return f"{chosen.node}/" + ",".join(map(str, indexes))


def _engine() -> Any:
    """A `Fleet`, or None without numpy."""
    if not exact():
        return None
    from gpushare.placement.fleet import Fleet

    return Fleet()


def _key(uid: str, namespace: str, name: str) -> str:
    return uid or f"{namespace}/{name}"
