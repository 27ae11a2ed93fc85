"""Checks the shape of saved objects.

An API server's objects have it; a file of `--from` may have been written by hand, and all other code relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract

STORAGE: Final = frozenset({"PersistentVolume", "PersistentVolumeClaim", "StorageClass", "CSINode", "VolumeAttachment"})
OLD_FIELDS: Final = frozenset({"awsElasticBlockStore", "azureDisk", "cinder", "gcePersistentDisk", "portworxVolume"})
QUOTA: Final = "ResourceQuota"
KINDS: Final = STORAGE | {contract.GPUNODE_KIND, "Pod", "Node", "Event", "PodDisruptionBudget", "ConfigMap", QUOTA}

# Fields of an object and their shapes; a list with one shape is a list of those. A missing field is valid.
Shape = Mapping[str, Any] | Sequence[Any] | str

_TEXT, _WHOLE, _ANY = "text", "whole", "any"
_EACH = "*"  # any field name
_TEXTS: Shape = {_EACH: _TEXT}
_OBJECTS: Shape = [{}]

_AMOUNTS: Shape = {"requests": {}, "limits": {}}
_REQUIREMENTS: Shape = [{"key": _TEXT, "operator": _TEXT, "values": [_ANY]}]
_SELECTOR: Shape = {"matchLabels": {}, "matchExpressions": _REQUIREMENTS}
_RELATION: Mapping[str, Any] = {
    "labelSelector": _SELECTOR,
    "matchLabelKeys": [_TEXT],
    "mismatchLabelKeys": [_TEXT],
    "namespaceSelector": _SELECTOR,
    "namespaces": [_ANY],
}
_RELATIONS: Shape = {"requiredDuringSchedulingIgnoredDuringExecution": [_RELATION]}
_NODE_TERMS: Shape = {"nodeSelectorTerms": [{"matchExpressions": _REQUIREMENTS, "matchFields": _REQUIREMENTS}]}
_CONTAINERS: Shape = [
    {
        "name": _TEXT,
        "env": _OBJECTS,
        "ports": [{"hostPort": _WHOLE, "containerPort": _WHOLE}],
        "resources": _AMOUNTS,
    }
]
_STATUSES: Shape = [{"state": {"waiting": {}}, "resources": _AMOUNTS, "allocatedResources": {}}]

_CLAIM: Mapping[str, Any] = {"metadata": {"annotations": _TEXTS}, "spec": {"storageClassName": _TEXT}}
_OLD: Mapping[str, Any] = {field: {} for field in sorted(OLD_FIELDS)}

_OBJECT: Shape = {
    "metadata": {
        "name": _TEXT,
        "namespace": _TEXT,
        "annotations": _TEXTS,
        "labels": _TEXTS,
        "ownerReferences": _OBJECTS,
    },
    "spec": {
        "nodeName": _TEXT,
        "priority": _WHOLE,
        "containers": _CONTAINERS,
        "initContainers": _CONTAINERS,
        "resources": _AMOUNTS,
        "overhead": {},
        "schedulingGates": _OBJECTS,
        "tolerations": _OBJECTS,
        "nodeSelector": {},
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _NODE_TERMS},
            "podAffinity": _RELATIONS,
            "podAntiAffinity": _RELATIONS,
        },
        "topologySpreadConstraints": [{**_RELATION, "maxSkew": _WHOLE, "minDomains": _WHOLE}],
        "volumes": [{"name": _TEXT, "persistentVolumeClaim": {}, "ephemeral": {"volumeClaimTemplate": _CLAIM}, **_OLD}],
        **_CLAIM["spec"],
        "volumeName": _TEXT,
        "claimRef": {},
        "nodeAffinity": {"required": _NODE_TERMS},
        "csi": {},
        **_OLD,
        "drivers": [{"allocatable": {"count": _WHOLE}}],
        "source": {"persistentVolumeName": _TEXT},
        "taints": [{"effect": _TEXT}],
        "allocations": _OBJECTS,
        "selector": _SELECTOR,
    },
    "status": {
        "phase": _TEXT,
        "conditions": _OBJECTS,
        "containerStatuses": _STATUSES,
        "initContainerStatuses": _STATUSES,
        "resources": _AMOUNTS,
        "allocatedResources": {},
        "allocatable": {},
        "capacity": {},
        "gpus": _OBJECTS,
        "disruptionsAllowed": _WHOLE,
    },
    "involvedObject": {},
    "regarding": {},
    "source": {},
    "series": {"count": _WHOLE},
    "count": _WHOLE,
    "data": _TEXTS,
}


def problem(item: Mapping[str, Any]) -> str:
    """The first field with a wrong shape, as the end of a sentence; empty if there is none."""
    return next(_problems(item, _OBJECT, ""), "")


def _problems(part: Any, shape: Shape, where: str) -> Iterator[str]:
    """Sentences about the parts that do not have `shape`; `where`: the path to the part."""
    if isinstance(shape, Mapping):
        if not isinstance(part, Mapping):
            yield f"{where} has no fields"
            return
        for key, value in part.items():
            if not isinstance(key, str):
                yield f"{where or 'the object'} has the field {key!r} that is not text: put it in quotes"
            elif value is not None and (inner := shape.get(key, shape.get(_EACH))) is not None:
                if inner == _TEXT and not isinstance(value, str) and _EACH in shape:
                    yield f'{where} has "{key}" that is not text: put it in quotes'
                else:
                    yield from _problems(value, inner, f"{where}.{key}" if where else key)
    elif shape == _TEXT:
        if not isinstance(part, str):
            yield f"{where} is not text: put it in quotes"
    elif shape == _WHOLE:
        if isinstance(part, bool) or not isinstance(part, int):
            yield f"{where} is not a whole number"
    elif not isinstance(shape, str):
        inner = shape[0]
        what = "objects" if isinstance(inner, Mapping) else "texts"
        if not isinstance(part, list) or (
            what == "objects" and not all(isinstance(element, Mapping) for element in part)
        ):
            yield f"{where} is not a list of {what}"
            return
        for position, element in enumerate(part):
            yield from _problems(element, inner, f"{where}[{position}]")
