"""The source that the flags choose, and reads that are the same for every source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from gpushare import contract, pod
from kubectl_gpushare import options, plugin_errors
from kubectl_gpushare.source import live_cluster

if TYPE_CHECKING:
    from gpushare import resource_quota
    from gpushare.gpunode import GpuNode
    from gpushare.placement_profile import PlacementProfile
    from gpushare.share_range import ShareRange
    from kubectl_gpushare.source.files import Files
    from kubectl_gpushare.source.snapshot import Snapshot

    Source = live_cluster.LiveCluster | Files

_Read = TypeVar("_Read")


def from_options(chosen: options.Options) -> Source:
    if not chosen.files:
        return live_cluster.LiveCluster(chosen.kubectl())
    from kubectl_gpushare.source import files

    return files.Files(chosen.files)


def pod_named(origin: Source, chosen: options.Options, word: str) -> pod.PodJson:
    """Return the pod POD or NAMESPACE/POD, also after `pod/`; its default namespace is that of -n or the context."""
    namespace, _, name = word.removeprefix("pod/").rpartition("/")
    if not options.is_name(name) or (namespace and not options.is_name(namespace)):
        raise plugin_errors.PluginError(f'"{word}" cannot be the name of a pod: write POD or NAMESPACE/POD')
    return origin.pod(namespace or chosen.namespace or origin.default_namespace, name)


# Names of what is read, for notes.
NODES = "nodes that are cordoned, not ready or without agent"
EVENTS = "Events"
BUDGETS = "PodDisruptionBudgets, which the API server heeds all the same"
CONFIGURATIONS = "configurations"
WORKLOADS = "why Kueue does not admit the pod"

_SAVE = "none were saved: save them with `kubectl get gpunodes,nodes,pods{more} -A -o yaml > FILE`"
NO_CONFIG_MAP = (
    "the ConfigMap was not saved: add another --from, of what "
    f"`kubectl -n {contract.SYSTEM_NAMESPACE} get configmap {contract.CONFIG_MAP} -o yaml` prints"
)


def read(
    call: Callable[[], _Read | None], what: str, notes: list[str], *, unsaved: str = _SAVE.format(more="")
) -> _Read | None:
    """Call `call`; if that is forbidden or was not saved, return None and note `what`, and why (`unsaved`, if any)."""
    try:
        result, missing = call(), unsaved
    except plugin_errors.KubectlForbidden as error:
        result, missing = None, str(error)
    if result is None and missing:
        notes.append(f"{what}: {missing}")
    return result


def with_pods(
    origin: Source, nodes: list[GpuNode], *, node: str = "", namespace: str = "", label_selector: str = ""
) -> Snapshot:
    from kubectl_gpushare.source.snapshot import Snapshot

    notes: list[str] = []
    pods = read(
        lambda: origin.pods(node=node, namespace=namespace, label_selector=label_selector),
        "pods' states and times",
        notes,
        unsaved="no pods were saved with the GPUNodes",
    )
    return Snapshot(tuple(nodes), pods, tuple(notes))


def everything(
    origin: Source, pods_to_place: Iterable[pod.PodJson] | None = None, *, with_all_volumes: bool = False
) -> Snapshot:
    """Return GPUNodes, Nodes and all pods; without the right to read some, a note says what is left out.

    Includes claims and volumes if one of `pods_to_place` mounts any; by default, if any pod that shares GPUs does, or
    with_all_volumes any pod.
    """
    if isinstance(origin, live_cluster.LiveCluster):
        origin.begin(node_objects=True, pods=True)
    try:
        snapshot = around(origin, origin.gpu_nodes())
    finally:
        if isinstance(origin, live_cluster.LiveCluster):
            origin.end()
    if pods_to_place is None:
        pods = snapshot.pods or ()
        pods_to_place = pods if with_all_volumes else filter(pod.asks_for_share, pods)
    return with_storage(origin, snapshot, pods_to_place)


def around(origin: Source, nodes: Iterable[GpuNode], *, namespace: str = "") -> Snapshot:
    """Return these GPUNodes with Nodes, all pods and the webhook's policy and mix, and a note for what is left out.

    Without the right to read all pods, those of `namespace` are read, if it is given.
    """
    from kubectl_gpushare.source.snapshot import Snapshot

    notes: list[str] = []
    node_objects = read(origin.node_objects, "nodes' readiness, taints, labels, CPU and memory", notes)
    pods = read(origin.everybody, "what pods take of their nodes", notes)
    if pods is None and namespace and isinstance(origin, live_cluster.LiveCluster):
        pods = read(lambda: origin.everybody_of(namespace=namespace), f"pods of {namespace}", notes, unsaved="")
        if pods is not None:
            notes.append(f"pods of other namespaces: only those of {namespace} could be read")
    profile = _profile(origin, notes)
    return Snapshot(tuple(nodes), pods, tuple(notes), node_objects=node_objects, profile=profile)


def with_storage(origin: Source, snapshot: Snapshot, pods_to_place: Iterable[pod.PodJson]) -> Snapshot:
    """Add claims and volumes if one of these pods mounts any."""
    from gpushare.nodefilters import volumes

    if snapshot.node_objects is None or not any(map(volumes.mounts, pods_to_place)):
        return snapshot
    notes = list(snapshot.notes)
    what = "volumes of claims, and how many of them nodes can attach"
    unsaved = _SAVE.format(more=",pvc,pv,storageclasses,csinodes,volumeattachments")
    storage = read(origin.storage, what, notes, unsaved=unsaved)
    return dataclasses.replace(snapshot, storage=storage, notes=tuple(notes))


def with_profile(origin: Source, snapshot: Snapshot) -> Snapshot:
    """Add the webhook's policy and mix; where they cannot be read, the defaults and a note."""
    notes = list(snapshot.notes)
    profile = _profile(origin, notes)
    return dataclasses.replace(snapshot, profile=profile, notes=tuple(notes))


def _profile(origin: Source, notes: list[str]) -> PlacementProfile:
    from gpushare import errors
    from gpushare.placement_profile import PlacementProfile

    what = "the policy of the cluster and what its pods ask for"
    try:
        return PlacementProfile.read(read(origin.placement, what, notes) or {})
    except errors.CodecError as error:
        notes.append(f"{what}: {error}")
        return PlacementProfile()


def allowances(
    origin: Source, namespaces: Iterable[str], notes: list[str]
) -> dict[str, tuple[resource_quota.Allowance, ...]]:
    """Return what the ResourceQuotas still allow, by namespace; empty with a note without the right to read them."""
    from gpushare import resource_quota

    def by_namespace() -> dict[str, tuple[resource_quota.Allowance, ...]]:
        return {
            namespace: tuple(filter(None, map(resource_quota.read, origin.quotas(namespace))))
            for namespace in sorted(set(namespaces))
        }

    return read(by_namespace, "ResourceQuotas, by which the API server may refuse what fits", notes) or {}


def share_range(origin: Source, namespace: str, notes: list[str]) -> ShareRange:
    """Return the defaults and bounds of a namespace; none, with a note, without the right to read it."""
    from gpushare import share_range

    what = f"defaults and bounds of the namespace {namespace}, by which the webhook may refuse what fits"
    found = read(lambda: origin.namespace(namespace), what, notes, unsaved="")
    return share_range.of_namespace(found) if found is not None else share_range.ShareRange(namespace)
