"""World: the cluster in memory, to try changes on. The webhook's own engine refuses and chooses."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpushare import contract, errors, fragmentation, ledger, node, placement, pod
from gpushare import request as requests
from gpushare.allocation import Allocation, PodRef, peak
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
from gpushare.placement import NodeView, Placement, exclusive_gpus
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.placement_profile import PlacementProfile
from gpushare.refusal import Refusal
from gpushare.request import Request
from gpushare.whatif import scheduler_scores, unavailable, unplaced

_PLANNED = "planned-"  # prefix of the ids of allocations made here
Answer = Placement | Refusal
Judge = Callable[[str], str | None]
Storage = Mapping[str, Sequence[Mapping[str, Any]]]  # by kind


class World:
    """GPUNodes as views by name, with what is known of Nodes and pods. Not thread-safe.

    machines: Nodes; None if they could not be read: then every node will do. pods: for the resources they take of
    their nodes; gpushare's are also found by `manifest`. storage: claims, volumes and so on, by kind, if known;
    claims_are_all: claims that are missing there do not exist. profile: the webhook's policy and mix.
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
        self.bounds: Mapping[
            str, exclusive_gpus.ExclusiveBound | None
        ] = {}  # on exclusive GPUs, by namespace, where known
        is_known = claims_are_all and storage is not None and volumes.CLAIM in storage
        self._cache: SchedulerCache | None = None
        if machines is not None:
            self._cache = SchedulerCache(is_full=self._is_full, knows_claims=lambda: is_known)
        self._profile = profile or PlacementProfile()
        self.engine = Fleet()  # it chooses
        nodes, machines = list(nodes), None if machines is None else list(machines)
        self._unavailable = unavailable.find(nodes, machines)
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
        if self._profile.mix.weights:
            self.engine.learn(self._profile.mix)

    @property
    def policy(self) -> str:
        """The policy for pods that name none."""
        return self._profile.policy

    def _is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        return name in self.views and self.views[name].is_full(amounts)

    def put(self, view: NodeView) -> None:
        """Sets the state of a node."""
        self.views[view.node.name] = view
        if self._cache is not None:
            self._cache.forget(view.node.name)
        self.engine.update(view, room=self.room(view.node.name))

    @contextlib.contextmanager
    def instead(self, *changed: GpuNode) -> Iterator[None]:
        """Replaces these nodes while the block runs."""
        before = [self.views[gpu_node.name] for gpu_node in changed]
        for gpu_node in changed:
            self.put(NodeView.of(gpu_node))
        try:
            yield
        finally:
            for view in before:
                self.put(view)

    def machine(self, name: str) -> NodeSpec | None:
        """A Node; None if it does not exist or Nodes were not read."""
        return self._cache.machine(name) if self._cache is not None else None

    @contextlib.contextmanager
    def with_machine(self, changed: NodeSpec) -> Iterator[None]:
        """Replaces this Node, which must exist, while the block runs."""
        assert self._cache is not None  # noqa: S101 - there are machines
        before = self._cache.machine(changed.name)
        self._cache.put_machine(changed.name, changed)
        try:
            yield
        finally:
            self._cache.put_machine(changed.name, before)

    def place(self, manifest: pod.PodJson, request: Request, *, judge: Judge | None = None) -> Answer:
        """Where the pod would go; a refusal names the nearest miss of each rule."""
        unfit = judge or self.judge(manifest, request)

        def attempt(request: Request) -> Answer:
            return self.engine.place(request, host=self.host(manifest), policy=self.policy, unfit=unfit)

        bound = self.bounds.get(pod.namespaced_name(manifest)[0])
        return exclusive_gpus.place(request, bound, self.views.values(), attempt)

    def refuse(self, manifest: pod.PodJson, request: Request) -> Answer:
        """The same, with every candidate in a refusal, in the order of the nodes; slower."""
        return placement.place(self.views.values(), request, unfit=self.judge(manifest, request))

    def judge(self, manifest: pod.PodJson, request: Request | None = None) -> Judge:
        """A function of a node's name: why the node cannot take the pod, as the rest of a sentence, or None."""
        if self._cache is None:
            return placement.fits_anywhere
        itself = _key(pod.uid(manifest), *pod.namespaced_name(manifest))
        return self._cache.judge(*share_resources.of(manifest, request), itself=itself)

    def unknown_claims(self, manifests: Iterable[pod.PodJson]) -> list[str]:
        """A note if some of these pods mount unknown claims."""
        if self._cache is None:
            return []
        claims = (self._cache.unknown_claim(PodAffinity.of(manifest)) for manifest in manifests)
        names = [name for name in dict.fromkeys(claims) if name]
        return [f"volumes of claims that are not there yet, such as {names[0]}"] if names else []

    def take(self, manifest: pod.PodJson, request: Request, chosen: Placement) -> Callable[[], None]:
        """Places an unplaced pod there; returns the undo. Raises `LedgerError` if there is no room."""
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
        """Removes a pod from a node; returns the undo."""
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

    def settle(self, manifest: pod.PodJson, name: str) -> Callable[[], None]:
        """Puts a pod without a share on a node; returns the undo."""
        self._occupy(manifest, name)
        self._reread(name)

        def undo() -> None:
            if self._cache is not None:
                self._cache.put(_key(pod.uid(manifest), *pod.namespaced_name(manifest)), None)
            self._reread(name)

        return undo

    def scheduled(self, manifest: pod.PodJson, *, left: str) -> str:
        """The node that kube-scheduler would most likely choose for a pod without a share; empty if none will do.

        left: the node of the pod that it is made instead of, which is chosen where another is only as good.
        """
        if self._cache is None:
            return ""
        return scheduler_scores.best(self._cache, manifest, left=left)

    def is_there(self, entry: Allocation) -> bool:
        """Whether the pod of an allocation still counts on the node where it was read."""
        if self._cache is None:
            return False
        return self._cache.pod_info(_key(entry.pod.uid, entry.pod.namespace, entry.pod.name)) is not None

    def pods(self) -> Iterator[tuple[str, pod.PodJson]]:
        """The pods that were read on a node, each after the node's name."""
        for manifest in self._manifests.values():
            name = str((manifest.get("spec") or {}).get("nodeName") or "")
            if name and not pod.is_terminal(manifest):
                yield name, manifest

    def usable(self) -> list[str]:
        """The nodes with GPUs that take pods."""
        return [name for name, view in self.views.items() if name not in self._unavailable and view.node.gpus]

    def free(self, name: str) -> tuple[int, int, int] | None:
        """CPU (thousandths), memory (bytes) and pods that a node has room for; None where nobody knows."""
        return None if self._cache is None else self._cache.room(name)

    def room(self, name: str) -> Room:
        """The CPU, memory and pods that a node has room for."""
        return Room(*(self.free(name) or ()))

    def room_without(self, name: str, manifest: pod.PodJson) -> Room:
        """The CPU, memory and pods that a node has room for once this pod, which is there, has left."""
        room = self.room(name)
        amounts = dict(PodKey.of(unplaced.successor(manifest)).amounts)
        cpu, memory = amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0)
        return dataclasses.replace(
            room, cpu_milli=room.cpu_milli + cpu, memory_bytes=room.memory_bytes + memory, pods=room.pods + 1
        )

    def fragmentation(self) -> fragmentation.Fragmentation:
        """Of the whole cluster, as `top` shows it."""
        gpus = (gpu for view in self.views.values() if view.node.name not in self._unavailable for gpu in view.gpus())
        return fragmentation.measure(gpus, self._profile.typical_of)

    def _occupy(self, manifest: pod.PodJson, where: str = "") -> None:
        if self._cache is None or pod.is_terminal(manifest):
            return
        where = where or str((manifest.get("spec") or {}).get("nodeName") or "")
        where = where or str(pod.annotations_of(manifest).get(contract.NODE, ""))
        if where:
            key = _key(pod.uid(manifest), *pod.namespaced_name(manifest))
            self._cache.put(key, PodInfo.of(share_resources.equipped(manifest), where))

    def _reread(self, name: str) -> None:
        """Has the engine know the room of a node with GPUs, where a pod without a share has come or gone."""
        if name in self.views:
            self.put(self.views[name])

    def host(self, manifest: pod.PodJson) -> Host:
        """What it asks of its node; nothing if it is on one, where the scheduler cache already counts it."""
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
        """Parses the request. Raises `RequestError` if it is invalid."""
        return cls(manifest, requests.parse(manifest))

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return pod.namespaced_name(self.manifest)[0]

    @property
    def request_gpus(self) -> float:
        """The compute that it asks for, in GPUs."""
        return peak(self.request.demands, lambda demand: demand.gpus * demand.share.request_percent) / 100

    def with_annotation(self, key: str, value: str | None) -> RequestingPod | None:
        """The pod with one annotation changed, or removed (None); None if that is not a valid request."""
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
    """The storage without the attachments of these pods' volumes on their nodes: those follow the pods."""
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
    """The nodes without the pod's allocations and backfill reservations, as if it were created now."""
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
    """Whether the allocation was made in memory only."""
    return entry.id.startswith(_PLANNED)


def gpus(chosen: Placement, views: Mapping[str, NodeView]) -> str:
    """The GPUs of a placement: `gpu-1/0`, or `gpu-1/0,2`."""
    gpus = views[chosen.node].node.gpu_by_uuid()
    indexes = sorted({gpus[uuid].index for share in chosen.shares for uuid in share.gpu_uuids if uuid in gpus})
    return f"{chosen.node}/" + ",".join(map(str, indexes))


def _key(uid: str, namespace: str, name: str) -> str:
    return uid or f"{namespace}/{name}"
