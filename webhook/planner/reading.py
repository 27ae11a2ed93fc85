"""Reading: the cluster as the planner needs it, listed once. Of a pod that is on no GPU node little is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final

from gpushare import codec, contract, node, pod
from gpushare.cluster import api_client, api_errors
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import volumes
from gpushare.placement_profile import PlacementProfile
from gpushare.whatif.world import World

NODES_PATH: Final = "/api/v1/nodes"
PODS_PATH: Final = "/api/v1/pods"
BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"
_FROM_CACHE: Final = {"resourceVersion": "0"}  # spares etcd: what is some seconds old will do for a plan

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterState:
    """What was listed. `storage`: by kind."""

    nodes: tuple[GpuNode, ...]
    machines: tuple[node.NodeJson, ...]
    pods: tuple[pod.PodJson, ...]
    storage: Mapping[str, tuple[Json, ...]]
    budgets: Budgets

    def world(self, profile: PlacementProfile) -> World:
        """The cluster in memory, to try moves on."""
        return World(self.nodes, self.machines, self.pods, self.storage, claims_are_all=True, profile=profile)


async def read(api: api_client.ApiClient, *, settled: Collection[str]) -> ClusterState:
    """The cluster now. settled: UIDs of owners whose pods stay. Raises ClusterError."""
    nodes = await api.list(contract.GPUNODE_PATH, _FROM_CACHE, keep=codec.read)
    machines = await api.list(NODES_PATH, _FROM_CACHE, keep=_machine)
    gpu_nodes = {gpu_node.name for gpu_node in nodes.items}
    pods = await api.list(PODS_PATH, _FROM_CACHE, keep=lambda item: _pod(item, gpu_nodes, settled))
    budgets = await api.list(BUDGETS_PATH, _FROM_CACHE, keep=api_client.whole)
    storage: dict[str, tuple[Json, ...]] = {}
    if any(map(volumes.mounts, pods.items)):
        for kind, path in volumes.PATHS.items():
            try:
                storage[kind] = tuple((await api.list(path, _FROM_CACHE, keep=_unmanaged)).items)
            except (api_errors.Forbidden, api_errors.NotFound):
                continue  # as the webhook does without it
    return ClusterState(
        tuple(nodes.items),
        tuple(machines.items),
        tuple(manifest for manifest in pods.items if not pod.is_terminal(manifest)),
        storage,
        Budgets.from_manifests(budgets.items),
    )


def _pod(item: Json, gpu_nodes: Collection[str], settled: Collection[str]) -> pod.PodJson:
    _unmanaged(item)
    spec = item["spec"]
    item["status"] = {key: text for key, text in (item.get("status") or {}).items() if key == "phase"}
    where = spec.get("nodeName")
    if where and where not in gpu_nodes:  # it matters to pods that want to be near it, or not
        item["spec"] = {key: spec[key] for key in ("nodeName", "affinity") if key in spec}
        item["metadata"].pop("annotations", None)
    elif evicting.owner(item)[1] in settled:
        annotations = {**pod.annotations_of(item), contract.NO_EVICT: "true"}  # for this plan
        item["metadata"]["annotations"] = annotations
    return item


def _machine(item: Json) -> Json:
    status = item.get("status") or {}
    item["status"] = {key: status[key] for key in ("allocatable", "conditions") if key in status}
    return _unmanaged(item)


def _unmanaged(item: Json) -> Json:
    item["metadata"].pop("managedFields", None)
    return item
