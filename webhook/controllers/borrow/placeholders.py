"""Placeholders as objects: their manifest, and reading them. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare.borrowing import Placeholder
from gpushare.pod import PodJson

PODS_PATH: Final = f"/api/v1/namespaces/{contract.BORROW_NAMESPACE}/pods"
TEMPLATE_PATH: Final = f"/api/v1/namespaces/{contract.BORROW_NAMESPACE}/podtemplates/{contract.BORROW_TEMPLATE}"
# A placeholder never keeps a node that could be removed. Shares do, as their pods select the node by its hostname.
_ANNOTATIONS: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME_FIELD: Final = "metadata.name"


def manifest(template: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return the placeholder to create for one GPU of the node; `template`: of the installed PodTemplate."""
    metadata, spec = template.get("metadata") or {}, dict(template.get("spec") or {})
    container, *_ = spec["containers"]
    gpu, resources = {contract.BORROWED_RESOURCE: "1"}, container.get("resources") or {}
    amounts = {kind: {**(resources.get(kind) or {}), **gpu} for kind in ("requests", "limits")}
    spec["containers"] = [{**container, "resources": amounts}]
    term = {"matchFields": [{"key": _NAME_FIELD, "operator": "In", "values": [node]}]}
    spec["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [term]}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{contract.BORROW_TEMPLATE}-",
            "namespace": contract.BORROW_NAMESPACE,
            "labels": dict(metadata.get("labels") or {}),
            "annotations": {**(metadata.get("annotations") or {}), **_ANNOTATIONS},
        },
        "spec": spec,
    }


def label(one: Placeholder) -> dict[str, Any]:
    """Return the patch that writes whether the placeholder's GPU has shares."""
    return {"metadata": {"labels": {contract.IN_USE_LABEL: contract.IN_USE_VALUE if one.in_use else None}}}


def reference(one: Placeholder) -> dict[str, str]:
    """Return the reference of an Event about a placeholder."""
    return {"apiVersion": "v1", "kind": "Pod", "namespace": contract.BORROW_NAMESPACE, "name": one.name, "uid": one.uid}


def read(made: PodJson) -> Placeholder:
    """Read a pod of the namespace; one for no node has the node ""."""
    metadata, spec, status = (made.get(key) or {} for key in ("metadata", "spec", "status"))
    conditions = {str(each.get("type")): str(each.get("message") or "") for each in status.get("conditions") or ()}
    said = str(status.get("message") or "") if pod.is_terminal(made) else conditions.get("PodScheduled", "")
    try:
        created = datetime.datetime.fromisoformat(str(metadata.get("creationTimestamp"))).timestamp()
    except ValueError:
        created = 0.0
    return Placeholder(
        name=str(metadata.get("name")),
        uid=pod.uid(made),
        node=str(spec.get("nodeName") or _selected(spec)),
        is_bound=bool(spec.get("nodeName")),
        leaves=metadata.get("deletionTimestamp") is not None,
        has_ended=pod.is_terminal(made),
        in_use=(metadata.get("labels") or {}).get(contract.IN_USE_LABEL) == contract.IN_USE_VALUE,
        created=created,
        message=errors.shortened(said),
    )


def _selected(spec: Mapping[str, Any]) -> str:
    try:
        terms = spec["affinity"]["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
        return str(terms[0]["matchFields"][0]["values"][0])
    except (KeyError, IndexError, TypeError):
        return ""
