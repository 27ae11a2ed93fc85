"""World: the cluster in memory, to try changes on. The webhook's own engine decides."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, gpu_capacity, isolation, ledger, node, nodefilters, placement, pod
from gpushare.allocation import Allocation, PodRef
from gpushare.gpunode import GpuNode
from gpushare.mix import NO_HOST, Host
from gpushare.nodefilters import pod_requests, share_resources, taints, volumes
from gpushare.placement import NodeView, Placement, exclusive_gpus
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.placement_profile import PlacementProfile
from gpushare.refusal import Refusal
from gpushare.request import Request
from gpushare.share_range import UNBOUNDED, ShareRange
from gpushare.whatif import unavailable_nodes
from gpushare.whatif.requesting_pod import RequestingPod


def nodes_without(nodes: Sequence[GpuNode], manifest: pod.PodJson) -> list[GpuNode]:
    """Return the nodes without the pod's allocations and backfill reservations, as if it were created now."""
    identity, name = pod.uid(manifest), pod.namespaced_name(manifest)

    def is_its(entry: Allocation) -> bool:
        if entry.pod.uid and identity:
            return entry.pod.uid == identity
        return bool(entry.pod.name) and (entry.pod.namespace, entry.pod.name) == name

    its = ((gpu_node, [entry.id for entry in gpu_node.allocations if is_its(entry)]) for gpu_node in nodes)
    return [ledger.release(gpu_node, ids) if ids else gpu_node for gpu_node, ids in its]


_PLANNED = "planned-"  # prefix of the IDs of allocations made here
_MAX_SCORE: Final = 100
_TAINT_WEIGHT: Final = 3
_COUNTED: Final = (pod_requests.CPU, pod_requests.MEMORY)
Answer = Placement | Refusal
FilterNode = Callable[[str], str | None]
Storage = Mapping[str, Sequence[Mapping[str, Any]]]  # by kind


class World:
    """GPUNodes as views by name, with the known Nodes and pods. Not thread-safe.

    node_manifests: Nodes; None if they could not be read: then every node fits. pods: all pods, for the resources they
    use; `manifest` finds those with shares. storage: claims, volumes and so on, by kind, if known; claims_are_all:
    other claims do not exist. profile: the webhook's policy and mix.
    """

    def __init__(
        self,
        nodes: Iterable[GpuNode],
        node_manifests: Iterable[node.NodeJson] | None = None,
        pods: Iterable[pod.PodJson] = (),
        storage: Storage | None = None,
        *,
        claims_are_all: bool = False,
        profile: PlacementProfile | None = None,
    ) -> None:
        self.views: dict[str, NodeView] = {}
        self.ranges: Mapping[str, ShareRange] = {}  # by namespace
        self.bounds: Mapping[str, exclusive_gpus.ExclusiveBound | None] = {}  # on exclusive GPUs, by namespace
        self.engine = Fleet()
        self.profile = profile or PlacementProfile()
        self._manifests: dict[str, pod.PodJson] = {}
        self._knows_nodes = node_manifests is not None
        is_known = claims_are_all and storage is not None and volumes.CLAIM in storage
        self._cache = nodefilters.SchedulerCache(is_full=self._is_full, knows_claims=lambda: is_known)
        nodes, pods, node_manifests = list(nodes), list(pods), list(node_manifests or ())
        self._unavailable = unavailable_nodes.find(nodes, node_manifests if self._knows_nodes else None)
        for node_manifest in node_manifests:
            self._cache.put_node_spec(node.name(node_manifest), nodefilters.NodeSpec.from_manifest(node_manifest))
        for kind, items in unaccounted(storage or {}, pods).items():
            for item in items:
                self._cache.put_storage(pod.namespaced_name(item), None, volumes.read({**item, "kind": kind}))
        for manifest in pods:
            self._manifests[_key(manifest)] = manifest
            self._occupy(manifest)
        for gpu_node in nodes:
            self.put(NodeView.from_node(gpu_node))
        if self.profile.mix.weights:
            self.engine.learn(self.profile.mix)

    @property
    def policy(self) -> str:
        """The policy for pods without one."""
        return self.profile.policy

    def put(self, view: NodeView) -> None:
        """Add or replace a node's view."""
        self.views[view.node.name] = view
        self._cache.forget(view.node.name)
        self.engine.update(view, room=self.room(view.node.name))

    @contextlib.contextmanager
    def replacing(self, *changed: GpuNode) -> Iterator[None]:
        """Replace these nodes while the block runs."""
        before = [self.views[gpu_node.name] for gpu_node in changed]
        for gpu_node in changed:
            self.put(NodeView.from_node(gpu_node))
        try:
            yield
        finally:
            for view in before:
                self.put(view)

    def node_spec(self, name: str) -> nodefilters.NodeSpec | None:
        """Return a Node; None if it does not exist or the Nodes were not read."""
        return self._cache.node_spec(name)

    @contextlib.contextmanager
    def replacing_node_spec(self, changed: nodefilters.NodeSpec) -> Iterator[None]:
        """Replace this Node, which must exist, while the block runs."""
        before = self._cache.node_spec(changed.name)
        self._cache.put_node_spec(changed.name, changed)
        try:
            yield
        finally:
            self._cache.put_node_spec(changed.name, before)

    def place(self, manifest: pod.PodJson, request: Request, *, node_filter: FilterNode | None = None) -> Answer:
        """Find a placement for the pod, or a refusal with the nearest miss of each rule."""
        unfit = node_filter or self.node_filter(manifest, request)

        def attempt(request: Request) -> Answer:
            return self.engine.place(request, host=self.host(manifest), policy=self.policy, unfit=unfit)

        bound, views = self.bounds.get(pod.namespaced_name(manifest)[0]), self.views.values()
        return self._by_kind(request, lambda each: exclusive_gpus.place(each, bound, views, attempt))

    def place_on(self, view: NodeView, manifest: pod.PodJson, request: Request, gone: Iterable[Allocation]) -> Answer:
        """Do the same on one node, which may differ from that in `views`, as if the pods of these shares had gone."""
        views = [view, *(other for other in self.views.values() if other.node.name != view.node.name)]
        bound = self.bounds.get(pod.namespaced_name(manifest)[0])
        with self._cache.without(_key_of(entry) for entry in gone):
            unfit = self.node_filter(manifest, request)

            def attempt(request: Request) -> Answer:
                return self.engine.place_on(view, request, policy=self.policy, unfit=unfit)

            return self._by_kind(request, lambda each: exclusive_gpus.place(each, bound, views, attempt))

    def range_of(self, asked: RequestingPod) -> ShareRange:
        """Return the defaults and bounds of the pod's namespace."""
        return self.ranges.get(asked.namespace, UNBOUNDED)

    def refuse(self, manifest: pod.PodJson, request: Request) -> Answer:
        """Do the same with every candidate in a refusal, in the order of the nodes; slower."""
        views, unfit = self.views.values(), self.node_filter(manifest, request)
        return self._by_kind(request, lambda each: placement.place(views, each, unfit=unfit))

    def _by_kind(self, request: Request, attempt: Callable[[Request], Answer]) -> Answer:
        return isolation.place(request, self.profile.isolation, attempt, offers=self.engine.offers)

    def node_filter(
        self, manifest: pod.PodJson, request: Request | None = None, *, ignores_host: bool = False
    ) -> FilterNode:
        """Return a function from a node's name to why it cannot take the pod, as a clause, or None.

        ignores_host: as if the pod needed no CPU and memory.
        """
        if not self._knows_nodes:
            return placement.fits_anywhere
        shape, relations = share_resources.key_and_affinity(manifest, request)
        if ignores_host:
            amounts = tuple(amount for amount in shape.amounts if amount[0] not in _COUNTED)
            shape = dataclasses.replace(shape, amounts=amounts, _hash=[])
        return self._cache.node_filter(shape, relations, itself=_key(manifest))

    def unknown_claims(self, manifests: Iterable[pod.PodJson]) -> list[str]:
        """Return a note if any of these pods mounts an unknown claim."""
        if not self._knows_nodes:
            return []
        claims = (self._cache.unknown_claim(nodefilters.PodAffinity.from_manifest(manifest)) for manifest in manifests)
        names = [name for name in dict.fromkeys(claims) if name]
        return [f"volumes of claims that do not exist yet, such as {names[0]}"] if names else []

    def assign(self, manifest: pod.PodJson, request: Request, chosen: Placement) -> Callable[[], None]:
        """Place an unplaced pod; return the undo. Raises `LedgerError` if there is no room."""
        before = self.views[chosen.node].node
        namespace, name = pod.namespaced_name(manifest)
        holder = PodRef(namespace or "default", name, pod.uid(manifest))
        identity = f"{_PLANNED}{len(before.allocations)}-{holder}"
        entry = chosen.allocation(request, allocation_id=identity, pod=holder, reserved_until=None)
        after = ledger.reserve(before, entry)
        self._occupy(manifest, chosen.node)
        self.put(NodeView.from_node(after))

        def undo() -> None:
            self._cache.put(_key(manifest), None)
            self.put(NodeView.from_node(before))

        return undo

    def remove(self, manifest: pod.PodJson, name: str, entry: Allocation) -> Callable[[], None]:
        """Remove a pod from a node; return the undo."""
        before = self.views[name]
        self._cache.put(_key(manifest), None)
        self.put(NodeView.from_node(ledger.release(before.node, [entry.id])))

        def undo() -> None:
            self._occupy(manifest)
            self.put(before)

        return undo

    def manifest(self, entry: Allocation) -> pod.PodJson | None:
        """Return the pod of an allocation, if it was read."""
        return self._manifests.get(_key_of(entry))

    def bind(self, manifest: pod.PodJson, name: str) -> Callable[[], None]:
        """Put a pod without a share on a node; return the undo."""

        def update_engine() -> None:
            if name in self.views:
                self.put(self.views[name])

        def undo() -> None:
            self._cache.put(_key(manifest), None)
            update_engine()

        self._occupy(manifest, name)
        update_engine()
        return undo

    def likely_node(self, manifest: pod.PodJson, *, left: str) -> str:
        """Return the node that kube-scheduler would most likely choose for a pod without a share; empty if none fits.

        The scores are those of kube-scheduler's default profile: NodeResourcesFit (LeastAllocated),
        NodeResourcesBalancedAllocation, and TaintToleration with weight 3
        (pkg/scheduler/apis/config/v1/default_plugins.go). Preferred affinity, soft topology spread and image locality
        are ignored, so the result is likely, not certain. left: the node of the replaced pod, which wins ties.
        """
        shape, relations = share_resources.key_and_affinity(manifest)
        node_filter = self._cache.node_filter(shape, relations)
        fitting = [spec for spec in self._cache.node_specs() if node_filter.fits(spec.name)]
        tolerated = taints.Tolerated(shape.tolerations)
        disliked = {
            spec.name: sum(tolerated.first_untolerated((taint,)) is not None for taint in spec.soft_taints)
            for spec in fitting
        }
        most = max(disliked.values(), default=0)

        def score(spec: nodefilters.NodeSpec) -> int:
            untainted = _MAX_SCORE - _MAX_SCORE * disliked[spec.name] // most if most else _MAX_SCORE
            return _resource_score(spec, self._cache.info(spec.name).amounts, shape) + _TAINT_WEIGHT * untainted

        return min(((-score(spec), spec.name != left, spec.name) for spec in fitting), default=(0, True, ""))[2]

    def has_pod(self, entry: Allocation) -> bool:
        """Whether the pod of an allocation is still on its node."""
        return self._cache.pod_info(_key_of(entry)) is not None

    def pods(self) -> Iterator[tuple[str, pod.PodJson]]:
        """Iterate over (node, pod) for the pods that were read on a node."""
        for manifest in self._manifests.values():
            name = str((manifest.get("spec") or {}).get("nodeName") or "")
            if name and not pod.is_terminal(manifest):
                yield name, manifest

    def usable(self) -> list[str]:
        """Return the available nodes with GPUs."""
        return [name for name, view in self.views.items() if name not in self._unavailable and view.node.gpus]

    def room(self, name: str) -> Room:
        """Return the free CPU, memory and pods of a node."""
        return Room(*(self._cache.room(name) or ()))

    def room_without(self, name: str, host: Host) -> Room:
        """Return the free CPU, memory and pods of a node once a pod with this CPU and memory has left it."""
        room = self.room(name)
        return Room(room.cpu_milli + host.cpu_milli, room.memory_bytes + host.memory_bytes, room.pods + 1)

    def fragmentation(self) -> gpu_capacity.Fragmentation:
        """Return the fragmentation of the whole cluster, as `top` shows it."""
        gpus = (gpu for view in self.views.values() if view.node.name not in self._unavailable for gpu in view.gpus())
        return gpu_capacity.fragmentation(gpus, self.profile.typical_of, self.profile.kinds)

    def _is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        return name in self.views and self.views[name].is_full(amounts)

    def _occupy(self, manifest: pod.PodJson, where: str = "") -> None:
        where = where or str((manifest.get("spec") or {}).get("nodeName") or "")
        where = where or str(pod.annotations_of(manifest).get(contract.NODE, ""))
        if where and self._knows_nodes and not pod.is_terminal(manifest):
            self._cache.put(
                _key(manifest), nodefilters.PodInfo.from_manifest(share_resources.equipped(manifest), where)
            )

    def host(self, manifest: pod.PodJson) -> Host:
        """Return the CPU and memory that the pod requests; none if it is bound, because it is counted already."""
        if not self._knows_nodes or (manifest.get("spec") or {}).get("nodeName"):
            return NO_HOST
        amounts = dict(nodefilters.PodKey.from_manifest(manifest).amounts)
        return Host(*(amounts.get(name, 0) for name in _COUNTED))


def unaccounted(storage: Storage, pods: Iterable[pod.PodJson]) -> Storage:
    """Return the storage without the attachments of these pods' volumes, which are counted with the pods."""
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


def is_planned(entry: Allocation) -> bool:
    """Whether the allocation exists in memory only."""
    return entry.id.startswith(_PLANNED)


def gpus(chosen: Placement, views: Mapping[str, NodeView]) -> str:
    """Format the GPUs of a placement: `gpu-1/0`, or `gpu-1/0,2`."""
    return format_gpus(views[chosen.node].node, {uuid for share in chosen.shares for uuid in share.gpu_uuids})


def format_gpus(gpu_node: GpuNode, uuids: Collection[str]) -> str:
    """Format GPUs of one node, in the same way."""
    return f"{gpu_node.name}/" + ",".join(
        str(index) for index in sorted(gpu.index for gpu in gpu_node.gpus if gpu.uuid in uuids)
    )


def _key(manifest: pod.PodJson) -> str:
    return pod.uid(manifest) or "/".join(pod.namespaced_name(manifest))


def _key_of(entry: Allocation) -> str:
    return entry.pod.uid or f"{entry.pod.namespace}/{entry.pod.name}"


def _resource_score(spec: nodefilters.NodeSpec, used: Mapping[str, int], shape: nodefilters.PodKey) -> int:
    """Return the sum of the LeastAllocated and BalancedAllocation scores, 0 to 200."""
    asked = dict(shape.amounts)
    has = spec.allocatable or {}
    counted = [name for name in _COUNTED if has.get(name, 0) > 0]
    parts = [min(1.0, (used.get(name, 0) + asked.get(name, 0)) / has[name]) for name in counted]
    if not parts:
        return 0
    least_allocated = sum(int(_MAX_SCORE * (1 - part)) for part in parts) // len(parts)
    return least_allocated + int(_MAX_SCORE * (1 - (max(parts) - min(parts)) / 2))
