"""The source that the flags choose, and reads that are the same for every source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gpushare import contract, node, pod
from kubectl_gpushare import options, plugin_errors
from kubectl_gpushare.source import live_cluster

if TYPE_CHECKING:
    from gpushare import resource_quota
    from gpushare.gpunode import GpuNode
    from gpushare.node import NodeJson
    from gpushare.placement_profile import PlacementProfile
    from kubectl_gpushare.source.snapshot import Snapshot

_Object = TypeVar("_Object")


class Source(Protocol):
    """Where GPUNodes and pods come from."""

    @property
    def default_namespace(self) -> str:
        """The namespace to look in when none is given."""

    def gpu_nodes(self, *, label_selector: str = "", name: str = "") -> list[GpuNode]:
        """The GPUNodes with these labels, or the one of that name."""

    def pods(self, *, node: str = "", namespace: str = "", label_selector: str = "") -> list[pod.PodJson] | None:
        """The pods that share GPUs: on `node` or on none yet; in a namespace; with these labels. None: not known."""

    def machines(self) -> list[NodeJson] | None:
        """The Node objects. None: not known."""

    def machine(self, name: str) -> NodeJson | None:
        """The Node object of that name. None: there is none, or it is unknown."""

    def configurations(self) -> dict[str, str] | None:
        """The entries of the ConfigMap that nodes pick theirs from. None: not known."""

    def placement(self) -> dict[str, str]:
        """The ConfigMap with the placer's policy and mix; empty if it is unknown."""

    def everybody(self) -> list[pod.PodJson] | None:
        """All pods that have not ended, ours or not. None: not known."""

    def events(self, kind: str, namespace: str, name: str) -> list[dict[str, Any]] | None:
        """The Events about one object. None: not known."""

    def failures(self, namespace: str) -> list[dict[str, Any]]:
        """The Events of a namespace about pods that could not be created; empty if unknown."""

    def workload(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """A workload such as a Deployment. None: not known. Raises `KubectlNotFound`."""

    def budgets(self) -> list[dict[str, Any]] | None:
        """The PodDisruptionBudgets."""

    def quotas(self, namespace: str) -> list[dict[str, Any]]:
        """The ResourceQuotas of a namespace; empty if unknown."""

    def storage(self) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
        """Claims, volumes and the nodes' attach limits, by kind. None: not known."""

    def pod(self, namespace: str, name: str) -> pod.PodJson:
        """Return one pod, with or without a share. Raises `KubectlNotFound`."""


def of(chosen: options.Options) -> Source:
    """The files of `--from`, or else the cluster."""
    if not chosen.files:
        return live_cluster.LiveCluster(chosen.kubectl())
    from kubectl_gpushare.source import files

    return files.Files(chosen.files)


def pod_named(origin: Source, chosen: options.Options, word: str) -> pod.PodJson:
    """The pod POD or NAMESPACE/POD, `pod/` before it allowed; the namespace defaults to `-n` or the context's."""
    namespace, _, name = word.removeprefix("pod/").rpartition("/")
    if not options.is_name(name) or (namespace and not options.is_name(namespace)):
        raise plugin_errors.PluginError(f'"{word}" cannot be the name of a pod: write POD or NAMESPACE/POD')
    return origin.pod(namespace or chosen.namespace or origin.default_namespace, name)


def with_pods(
    origin: Source, nodes: list[GpuNode], *, node: str = "", namespace: str = "", label_selector: str = ""
) -> Snapshot:
    """Return these nodes with their pods; without the right to read pods, add a note on what is left out."""
    from kubectl_gpushare.source.snapshot import Snapshot

    try:
        pods = origin.pods(node=node, namespace=namespace, label_selector=label_selector)
    except plugin_errors.KubectlForbidden as error:
        return Snapshot(tuple(nodes), None, (f"pods' states and times: {error}",))
    if pods is None:
        return Snapshot(tuple(nodes), None, ("pods' states and times: no pods were saved with the GPUNodes",))
    return Snapshot(tuple(nodes), tuple(pods))


_SAVED = "none were saved: save them with `kubectl get gpunodes,nodes,pods -A -o yaml > FILE`"


_NO_CONFIG_MAP = (
    "configurations: the ConfigMap was not saved: add another --from, of what "
    f"`kubectl -n {contract.SYSTEM_NAMESPACE} get configmap {contract.CONFIG_MAP} -o yaml` prints"
)


_OF_STORAGE = "gpunodes,nodes,pods,pvc,pv,storageclasses,csinodes,volumeattachments"
_STORAGE = "volumes of claims, and how many of them nodes can attach"


def everything(
    origin: Source, asked: Iterable[pod.PodJson] | None = None, *, with_all_volumes: bool = False
) -> Snapshot:
    """GPUNodes, Nodes and all pods; without the right to read some, a note says what is left out.

    Also claims and volumes, if one of the pods in `asked` mounts any; `asked` None: any pod that shares GPUs,
    or with_all_volumes any pod.
    """
    from gpushare.nodefilters import volumes
    from kubectl_gpushare.source.snapshot import Snapshot

    if isinstance(origin, live_cluster.LiveCluster):
        origin.begin_all()
    try:
        nodes = origin.gpu_nodes()
        notes: list[str] = []
        machines = _unless_forbidden(origin.machines, "nodes' readiness, taints, labels, CPU and memory", notes)
        pods = _unless_forbidden(origin.everybody, "what pods take of their nodes", notes)
        profile = _profile(origin, notes)
    finally:
        if isinstance(origin, live_cluster.LiveCluster):
            origin.end()
    if asked is None:
        asked = (pods or ()) if with_all_volumes else filter(pod.asks_for_share, pods or ())
    storage = _storage(origin, notes) if machines is not None and any(map(volumes.mounts, asked)) else None
    return Snapshot(
        tuple(nodes),
        None if pods is None else tuple(pods),
        tuple(notes),
        machines=None if machines is None else tuple(machines),
        storage=storage,
        profile=profile,
    )


def with_profile(origin: Source, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the webhook's policy and mix; where they cannot be read the defaults, and a note."""
    notes = list(snapshot.notes)
    profile = _profile(origin, notes)
    return dataclasses.replace(snapshot, profile=profile, notes=tuple(notes))


def _profile(origin: Source, notes: list[str]) -> PlacementProfile:
    from gpushare import errors
    from gpushare.placement_profile import PlacementProfile

    what = "the policy of the cluster and what its pods ask for"
    try:
        return PlacementProfile.read(origin.placement())
    except (plugin_errors.KubectlForbidden, errors.CodecError) as error:
        notes.append(f"{what}: {error}")
        return PlacementProfile()


def _storage(origin: Source, notes: list[str]) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
    try:
        storage = origin.storage()
    except plugin_errors.KubectlForbidden as error:
        notes.append(f"{_STORAGE}: {error}")
        return None
    if storage is None:
        notes.append(f"{_STORAGE}: none were saved: save them with `kubectl get {_OF_STORAGE} -A -o yaml > FILE`")
    return storage


def machines(origin: Source, name: str = "") -> tuple[tuple[NodeJson, ...] | None, tuple[str, ...]]:
    """All Nodes, or the one of that name; without the right to read them None, and a note; None if none were saved."""
    notes: list[str] = []

    def one() -> list[NodeJson] | None:
        machine = origin.machine(name)
        known = machine is not None or isinstance(origin, live_cluster.LiveCluster)
        return list(filter(None, [machine])) if known else None

    nodes = _unless_forbidden(
        one if name else origin.machines, "nodes that are cordoned, not ready or without agent", notes, silent=True
    )
    return None if nodes is None else tuple(nodes), tuple(notes)


def with_events(origin: Source, snapshot: Snapshot, kind: str, namespace: str, name: str) -> Snapshot:
    """The snapshot with the Events about one object; without the right to read them, a note."""
    notes = list(snapshot.notes)
    events = _unless_forbidden(lambda: origin.events(kind, namespace, name), "Events", notes, silent=True)
    return dataclasses.replace(snapshot, events=None if events is None else tuple(events), notes=tuple(notes))


def allowances(
    origin: Source, namespaces: Iterable[str]
) -> tuple[dict[str, tuple[resource_quota.Allowance, ...]], tuple[str, ...]]:
    """Return the ResourceQuotas' remaining amounts by namespace; without the right to read them, a note."""
    from gpushare import resource_quota

    by_namespace: dict[str, tuple[resource_quota.Allowance, ...]] = {}
    try:
        for namespace in sorted(set(namespaces)):
            known = map(resource_quota.read, origin.quotas(namespace))
            by_namespace[namespace] = tuple(allowance for allowance in known if allowance is not None)
    except plugin_errors.KubectlForbidden as error:
        return {}, (f"ResourceQuotas, by which the API server may refuse what fits: {error}",)
    return by_namespace, ()


def labels(origin: Source, name: str) -> tuple[Mapping[str, str] | None, tuple[str, ...]]:
    """The labels of a Node; without the right to read it, or if it was not saved, None and a note."""
    what = f"the labels of the node {name}"
    try:
        machine = origin.machine(name)
    except plugin_errors.KubectlForbidden as error:
        return None, (f"{what}: {error}",)
    return (None, (f"{what}: there is no such Node object",)) if machine is None else (node.labels(machine), ())


def configurations(origin: Source) -> tuple[Mapping[str, str] | None, tuple[str, ...]]:
    """The configurations that nodes can follow, by name; without the right to read them None, and a note."""
    try:
        entries = origin.configurations()
    except plugin_errors.KubectlForbidden as error:
        return None, (f"configurations: {error}",)
    return entries, () if entries is not None else (_NO_CONFIG_MAP,)


def budgets(origin: Source) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The PodDisruptionBudgets; without the right to read them none, and a note."""
    notes: list[str] = []
    declared = _unless_forbidden(origin.budgets, "PodDisruptionBudgets, which the API server heeds all the same", notes)
    return declared or [], tuple(notes)


def _unless_forbidden(
    read: Callable[[], list[_Object] | None], what: str, notes: list[str], *, silent: bool = False
) -> list[_Object] | None:
    try:
        objects = read()
    except plugin_errors.KubectlForbidden as error:
        notes.append(f"{what}: {error}")
        return None
    if objects is None and not silent:
        notes.append(f"{what}: {_SAVED}")
    return objects
