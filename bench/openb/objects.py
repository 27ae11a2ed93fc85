"""The openb nodes and pods as Kubernetes objects, placed by the product's own placement as they arrive."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from gpushare import contract, quantity, request
from gpushare.allocation import Allocation, PodRef
from gpushare.gpunode import Gpu, GpuNode
from gpushare.mix import Host, Mix, RequestClass, classes_of
from gpushare.node import NodeJson
from gpushare.placement import Placement
from gpushare.placement_profile import PlacementProfile
from gpushare.pod import PodJson
from openb.own_policies import GPU_GIB, MIB, Gpushare
from openb.trace import Node, Placed, Pod
from webhook.pods import mutation


@dataclasses.dataclass(frozen=True)
class Objects:
    """The objects. `pods`: those on nodes; `waiting`: those that did not fit, in order of arrival."""

    nodes: tuple[GpuNode, ...]
    node_objects: tuple[NodeJson, ...]
    pods: tuple[PodJson, ...]
    waiting: tuple[PodJson, ...]
    profile: PlacementProfile


def load(nodes: Sequence[Node], arriving: Iterable[Pod]) -> Objects:
    """Return the cluster after these pods have arrived one after the other and all still run."""
    scheduler = Gpushare("fragmentation", nodes)
    gpus = [
        tuple(Gpu(f"GPU-{node.name}-{index}", index, node.model, GPU_GIB << 30) for index in range(node.gpus))
        for node in nodes
    ]
    entries: dict[int, list[Allocation]] = collections.defaultdict(list)
    counts: collections.Counter[RequestClass] = collections.Counter()
    there, waiting, sharing = [], [], 0
    for number, pod in enumerate(arriving):
        manifest = _manifest(f"p{number}", pod)
        placed = scheduler.place(pod)
        if placed is None:
            waiting += [manifest] if pod.gpus else []
            continue
        manifest["spec"]["nodeName"] = nodes[placed.node].name
        if pod.gpus:
            asked = request.parse(manifest)
            counts.update(classes_of(asked, Host(pod.cpu_milli, pod.memory_mib * MIB)))
            sharing += 1
            entry = _entry(manifest, asked, gpus[placed.node], placed)
            entries[placed.node].append(entry)
            name = nodes[placed.node].name
            manifest = dict(mutation.rewrite(manifest, asked, mutation.Placed(entry.id, name, name, entry.shares)))
        there.append(manifest)
    return Objects(
        tuple(GpuNode(node.name, gpus[number], tuple(entries[number])) for number, node in enumerate(nodes)),
        tuple(map(_node_object, nodes)),
        tuple(there),
        tuple(waiting),
        PlacementProfile(mix=Mix.from_counts(counts, pods=sharing)),
    )


def number(manifest: PodJson) -> int:
    """Return a pod's position in order of arrival."""
    return int(manifest["metadata"]["name"].removeprefix("p"))


def _entry(manifest: PodJson, asked: request.Request, gpus: Sequence[Gpu], placed: Placed) -> Allocation:
    name = manifest["metadata"]["name"]
    share = asked.demands[0].on([gpus[index] for index in placed.gpus])
    holder = PodRef("default", name, manifest["metadata"]["uid"])
    placement = Placement("", (share,))
    return placement.allocation(asked, allocation_id=f"a-{name}", pod=holder, reserved_until=None)


def _manifest(name: str, pod: Pod) -> PodJson:
    """Return a pod owned by its own ReplicaSet."""
    asks = {contract.REQUEST: quantity.format_compute(pod.percent), contract.GPUS: str(pod.gpus)} if pod.gpus else {}
    if pod.models:
        asks[contract.MODEL] = ",".join(pod.models)
    amounts = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": asks,
            "ownerReferences": [{"kind": "ReplicaSet", "name": name, "uid": f"owner-{name}", "controller": True}],
        },
        "spec": {"containers": [{"name": "main", "image": "sample", "resources": {"requests": amounts}}]},
    }


def _node_object(node: Node) -> NodeJson:
    offered = {
        contract.RESOURCE_PERCENT: str(node.gpus * 100),
        contract.RESOURCE_MEMORY: f"{node.gpus * GPU_GIB}Gi",
        contract.RESOURCE_IDLE: str(node.gpus * contract.IDLE_SHARES_PER_GPU),
    }
    amounts = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": "1000"}
    return {
        "metadata": {"name": node.name, "labels": {contract.HOSTNAME_LABEL: node.name}},
        "status": {"allocatable": {**amounts, **offered}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
