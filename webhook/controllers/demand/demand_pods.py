"""Demand pods as objects: which to create and delete for a packing, and their manifests. Pure.

A demand pod must stay unschedulable until a new node comes. So it excludes, by hostname, the nodes that have room for
it when it is created: an autoscaler gives each node that it simulates another hostname. A pod that was bound after all
is deleted; if its GPUs are still missing then, another takes its place.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, pod
from gpushare.nodefilters import PodKey, pod_requests
from gpushare.pod import PodJson
from gpushare.whatif.node_demand import NodeDemand

PODS_PATH: Final = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/pods"
TEMPLATE_PATH: Final = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/podtemplates/{contract.DEMAND_TEMPLATE}"
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
# A demand pod must not keep a node that could be removed.
_ANNOTATIONS: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclasses.dataclass(frozen=True, slots=True)
class DemandPod:
    """A demand pod that exists. key: of `key_of`. is_done: it is bound, or has ended. leaves: it is being deleted."""

    name: str
    uid: str
    key: str
    cpu_milli: int
    memory_bytes: int
    is_done: bool
    leaves: bool

    @classmethod
    def from_manifest(cls, manifest: PodJson) -> DemandPod:
        """Read a pod of the namespace."""
        metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
        amounts = dict(PodKey.from_manifest(manifest).amounts)
        return cls(
            name=str(metadata.get("name")),
            uid=pod.uid(manifest),
            key=str((metadata.get("labels") or {}).get(contract.DEMAND_LABEL) or ""),
            cpu_milli=amounts.get(pod_requests.CPU, 0),
            memory_bytes=amounts.get(pod_requests.MEMORY, 0),
            is_done=bool(spec.get("nodeName")) or pod.is_terminal(manifest),
            leaves=metadata.get("deletionTimestamp") is not None,
        )

    def covers(self, demand: NodeDemand) -> bool:
        """Whether a node that fits this pod has the CPU and memory of the demand."""
        return self.cpu_milli >= demand.cpu_milli and self.memory_bytes >= demand.memory_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Pods to delete, and demands to create a pod for."""

    delete: tuple[DemandPod, ...]
    create: tuple[NodeDemand, ...]


def plan(existing: Iterable[DemandPod], demands: Sequence[NodeDemand]) -> Plan:
    """Compare the pods with the demands.

    A pod that is being deleted, or has just been bound, still counts: whether its demand goes on shows afterwards.
    """
    there: dict[str, list[DemandPod]] = collections.defaultdict(list)
    for one in existing:
        there[one.key].append(one)
    wanted: dict[str, list[NodeDemand]] = collections.defaultdict(list)
    for demand in demands:
        wanted[key_of(demand)].append(demand)
    delete: list[DemandPod] = []
    create: list[NodeDemand] = []
    for key in dict.fromkeys((*wanted, *there)):
        done = [one for one in there[key] if one.is_done or one.leaves]
        delete += [one for one in done if not one.leaves]
        pods = sorted((one for one in there[key] if one not in done), key=_size, reverse=True)
        open_ = sorted(wanted[key], key=_size, reverse=True)
        open_ = open_[: max(0, len(open_) - len(done))]
        for one, demand in itertools.zip_longest(pods, open_):
            is_kept = one is not None and demand is not None and one.covers(demand)
            if one is not None and not is_kept:
                delete.append(one)
            if demand is not None and not is_kept:
                create.append(demand)
    return Plan(tuple(delete), tuple(create))


def key_of(demand: NodeDemand) -> str:
    """Return a checksum of the nodes and the number of GPUs that the demand is for, as a label's value."""
    text = json.dumps([demand.selection, demand.product, demand.gpus])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def selection_of(manifest: PodJson) -> str:
    """Return what a pod asks of the Node, and a demand pod can ask too, as JSON."""
    spec = manifest.get("spec") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    asked = {"nodeSelector": spec.get("nodeSelector"), "tolerations": spec.get("tolerations"), "required": required}
    return json.dumps({key: value for key, value in asked.items() if value}, sort_keys=True)


def selecting(selection: str, template: Mapping[str, Any], product: str = "") -> dict[str, Any]:
    """Return the fields of a demand pod's spec that select nodes; `template`: the spec of its template."""
    asked = json.loads(selection)
    selector = {**(template.get("nodeSelector") or {}), **asked.get("nodeSelector", {})}
    selector |= {PRODUCT_LABEL: product} if product else {}
    tolerations = [*(template.get("tolerations") or ()), *asked.get("tolerations", ())]
    required = asked.get("required")
    return {
        **({"nodeSelector": selector} if selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        **({"affinity": {"nodeAffinity": {_REQUIRED: required}}} if required else {}),
    }


def amount(resource: str, gpus: int) -> int:
    """Return how much of the resource stands for so many GPUs."""
    return gpus * 100 if resource == contract.RESOURCE_PERCENT else gpus


def manifest(
    template: Mapping[str, Any], demand: NodeDemand, *, resource: str, excluded: Collection[str]
) -> dict[str, Any]:
    """Return the pod to create; `template`: the pod template that the administrator has installed."""
    metadata, spec = template.get("metadata") or {}, dict(template.get("spec") or {})
    spec |= selecting(demand.selection, spec, demand.product)
    if excluded:
        spec["affinity"] = {"nodeAffinity": {_REQUIRED: _excluding(spec.get("affinity"), sorted(excluded))}}
    asked = {resource: str(amount(resource, demand.gpus))}
    host = {"cpu": f"{demand.cpu_milli}m", "memory": str(demand.memory_bytes)}
    container, *_ = spec["containers"]
    spec["containers"] = [{**container, "resources": {"requests": {**host, **asked}, "limits": asked}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{contract.DEMAND_TEMPLATE}-",
            "namespace": contract.DEMAND_NAMESPACE,
            "labels": {**(metadata.get("labels") or {}), contract.DEMAND_LABEL: key_of(demand)},
            "annotations": {**(metadata.get("annotations") or {}), **_ANNOTATIONS},
        },
        "spec": spec,
    }


def _excluding(affinity: Mapping[str, Any] | None, hostnames: list[str]) -> dict[str, Any]:
    """Return the required node affinity that excludes these hostnames too; terms are alternatives."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    without = {"key": contract.HOSTNAME_LABEL, "operator": "NotIn", "values": hostnames}
    before: list[dict[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), without]} for term in before]
    return {"nodeSelectorTerms": terms}


def _size(item: DemandPod | NodeDemand) -> tuple[int, int]:
    return item.cpu_milli, item.memory_bytes
