"""Demand pods as objects: which to create and delete for a packing, their manifests, and the reasons. Pure.

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

from gpushare import contract, errors, pod
from gpushare.nodefilters import selectors
from gpushare.pod import PodJson
from gpushare.quantity import counted
from gpushare.whatif.node_demand import Deferred, NodeDemand, Packing, Unmet

PODS_PATH: Final = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/pods"
TEMPLATE_PATH: Final = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/podtemplates/{contract.DEMAND_TEMPLATE}"
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
# A demand pod must not keep a node that could be removed.
_ANNOTATIONS: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
LATE_SECONDS: Final = 900.0  # after so long, Cluster Autoscaler gives up a node that does not start
MAX_WORDS: Final = 300  # characters quoted from the autoscaler or the API server
_COME_FIRST: Final = {
    Deferred.LATE: f"; newer pods come first, as it has waited for over {LATE_SECONDS / 60:g} minutes",
    Deferred.OVERSIZED: "; other pods come first, as no known node has as many GPUs",
}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclasses.dataclass(frozen=True, slots=True)
class DemandPod:
    """A demand pod that exists.

    key: of `key_of`. size: as `_size` writes it. is_done: it is bound, or has ended. leaves: it is being deleted.
    """

    name: str
    uid: str
    key: str
    size: str
    is_done: bool
    leaves: bool

    @classmethod
    def from_manifest(cls, manifest: PodJson) -> DemandPod:
        """Read a pod of the namespace. Its label counts, because other webhooks may change its amounts."""
        metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
        key, _, size = str((metadata.get("labels") or {}).get(contract.DEMAND_LABEL) or "").partition("-")
        return cls(
            name=str(metadata.get("name")),
            uid=pod.uid(manifest),
            key=key,
            size=size,
            is_done=bool(spec.get("nodeName")) or pod.is_terminal(manifest),
            leaves=metadata.get("deletionTimestamp") is not None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Pods to delete, and demands to create a pod for."""

    delete: tuple[DemandPod, ...]
    create: tuple[NodeDemand, ...]


def plan(existing: Iterable[DemandPod], demands: Sequence[NodeDemand], template: Mapping[str, Any]) -> Plan:
    """Compare the pods with the demands; `template`: the pod template that the administrator has installed.

    A pod that is being deleted, or has just been bound, still counts: whether its demand goes on shows afterwards. A
    pod with other amounts than its demand goes, because no node may ever fit it.
    """
    there: dict[str, list[DemandPod]] = collections.defaultdict(list)
    for one in existing:
        there[one.key].append(one)
    wanted: dict[str, list[NodeDemand]] = collections.defaultdict(list)
    for demand in demands:
        wanted[key_of(demand, template)].append(demand)
    delete: list[DemandPod] = []
    create: list[NodeDemand] = []
    for key in dict.fromkeys((*wanted, *there)):
        done = [one for one in there[key] if one.is_done or one.leaves]
        delete += [one for one in done if not one.leaves]
        pods = [one for one in there[key] if one not in done]
        kept: list[DemandPod] = []
        missing: list[NodeDemand] = []
        for demand in wanted[key]:
            same = next((one for one in pods if one.size == _size(demand)), None)
            if same is None:
                missing.append(demand)
            else:
                pods.remove(same)
                kept.append(same)
        surplus = max(0, len(done) - len(missing))
        delete += (*pods, *kept[:surplus])
        create += missing[len(done) :]
    return Plan(tuple(delete), tuple(create))


def key_of(demand: NodeDemand, template: Mapping[str, Any]) -> str:
    """Return a checksum of the nodes and the number of GPUs that the demand is for, and of the template."""
    text = json.dumps([demand.selection, demand.product, demand.gpus, template], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def selection_of(manifest: PodJson) -> str:
    """Return what a pod asks of the Node, and a demand pod can ask too, as JSON."""
    spec = manifest.get("spec") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    asked = {"nodeSelector": spec.get("nodeSelector"), "tolerations": spec.get("tolerations"), "required": required}
    return json.dumps({key: value for key, value in asked.items() if value}, sort_keys=True)


def conflict(selection: str, template: Mapping[str, Any]) -> str | None:
    """Return why no node that the template allows can have what the selection asks for; `template`: as in `plan`."""
    allowed = (template.get("spec") or {}).get("nodeSelector") or {}
    for key, value in sorted(json.loads(selection).get("nodeSelector", {}).items()):
        if allowed.get(key, value) != value:
            installed = (
                f"{key}={allowed[key]} of the PodTemplate {contract.DEMAND_NAMESPACE}/{contract.DEMAND_TEMPLATE}"
            )
            return f"its nodeSelector {key}={value} conflicts with {installed}"
    return None


def may_have(selection: str, product: str) -> bool:
    """Whether a node with this product label can have what the selection asks for; it may ask for another product."""
    asked = json.loads(selection)
    if asked.get("nodeSelector", {}).get(PRODUCT_LABEL, product) != product:
        return False
    terms = selectors.of_nodes(asked.get("required"))
    return terms is None or any(
        all(wanted.holds(product) for wanted in term.labels.requirements if wanted.key == PRODUCT_LABEL)
        for term in terms
    )


def narrows(selection: str) -> bool:
    """Whether the selection allows only some nodes."""
    return not json.loads(selection).keys() <= {"tolerations"}


def selecting(
    selection: str, template: Mapping[str, Any], product: str = "", excluded: Collection[str] = ()
) -> dict[str, Any]:
    """Return the fields of a demand pod's spec that select nodes; `template`: as in `plan`, `excluded`: hostnames."""
    asked, spec = json.loads(selection), template.get("spec") or {}
    selector = {**asked.get("nodeSelector", {}), **(spec.get("nodeSelector") or {})}
    selector |= {PRODUCT_LABEL: product} if product else {}
    tolerations = [*(spec.get("tolerations") or ()), *asked.get("tolerations", ())]
    affinity = spec.get("affinity") or {}
    without = {"key": contract.HOSTNAME_LABEL, "operator": "NotIn", "values": sorted(excluded)}
    required = _all_of(
        ((affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}).get("nodeSelectorTerms"),
        asked.get("required", {}).get("nodeSelectorTerms"),
        [{"matchExpressions": [without]}] if excluded else None,
    )
    if required:
        node_affinity = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: {"nodeSelectorTerms": required}}
        affinity = {**affinity, "nodeAffinity": node_affinity}
    return {
        **({"nodeSelector": selector} if selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        **({"affinity": affinity} if affinity else {}),
    }


def amount(resource: str, gpus: int) -> int:
    """Return the amount of the resource that this number of GPUs is."""
    return gpus * 100 if resource == contract.RESOURCE_PERCENT else gpus


def manifest(
    template: Mapping[str, Any], demand: NodeDemand, *, resource: str, excluded: Collection[str]
) -> dict[str, Any]:
    """Return the pod to create; `template`: as in `plan`, `excluded`: hostnames of nodes that it must not use."""
    metadata, spec = template.get("metadata") or {}, dict(template.get("spec") or {})
    spec |= selecting(demand.selection, template, demand.product, excluded)
    asked = {resource: str(amount(resource, demand.gpus))}
    host = {"cpu": f"{demand.cpu_milli}m", "memory": str(demand.memory_bytes)}
    label = f"{key_of(demand, template)}-{_size(demand)}"
    container, *_ = spec["containers"]
    spec["containers"] = [{**container, "resources": {"requests": {**host, **asked}, "limits": asked}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{contract.DEMAND_TEMPLATE}-",
            "namespace": contract.DEMAND_NAMESPACE,
            "labels": {**(metadata.get("labels") or {}), contract.DEMAND_LABEL: label},
            "annotations": {**(metadata.get("annotations") or {}), **_ANNOTATIONS},
        },
        "spec": spec,
    }


def ends(packing: Packing, failed: Mapping[NodeDemand, str], max_gpus: int) -> dict[str, str]:
    """Return the end of each waiting pod's reason, by UID; `failed`: why the demand's pod was rejected."""
    asked: dict[tuple[str, str], int] = {}
    for demand in packing.demands:
        if demand not in failed:
            where = demand.selection, demand.product
            asked[where] = asked.get(where, 0) + demand.gpus
    first = {uid: _COME_FIRST[why] for uid, why in packing.deferred.items()}
    said: dict[str, str] = {}
    for demand in packing.demands:
        if demand in failed:
            end = f"; asks for no node: {errors.shortened(failed[demand], longest=MAX_WORDS)}"
            said |= dict.fromkeys(demand.uids, end)
        else:
            gpus = asked[demand.selection, demand.product]
            end = f"; waits for a node: {counted(gpus, 'GPU')} asked for"
            said |= {uid: end + first.get(uid, "") for uid in demand.uids}
    bound = f"; asks for no node: no more than {max_gpus} GPUs are asked for (--demand-max-gpus)"
    no_kind = "; asks for no node: it fits on no GPU that is known (--demand-products), even if that is empty"
    for uid, why in packing.unmet.items():
        said[uid] = bound + first.get(uid, "") if why is Unmet.BOUND else no_kind
    return said


def _all_of(*several: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the node selector terms that mean all of these lists; the terms of a list are alternatives.

    An empty term matches no node, and so must each combination with it.
    """
    given = [terms for terms in several if terms]
    keys = "matchExpressions", "matchFields"
    both = [
        {key: found for key in keys if (found := [each for term in terms for each in term.get(key) or ()])}
        for terms in itertools.product(*given)
        if all(any(term.get(key) for key in keys) for term in terms)
    ]
    return (both or [{}]) if given else []


def _size(demand: NodeDemand) -> str:
    return f"{demand.cpu_milli}-{demand.memory_bytes}"
