"""Copies: what is kept of each pod with a share, because a cluster has many. Less of one that does not wait. Pure."""

from __future__ import annotations

from typing import Any, Final

from gpushare import contract, pod

# Of a pod's spec, and of each container, what decides where it can run.
FITNESS_KEYS: Final = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
    "hostNetwork",
    "overhead",
    "resources",
)
CONTAINER_KEYS: Final = ("resources", "ports", "restartPolicy")
_OF_GATED: Final = (*FITNESS_KEYS, "schedulingGates", "priority")
_OF_PLACED: Final = ("nodeName", "nodeSelector", "priority")
_OF_OTHERS: Final = (contract.MIRROR_ANNOTATION, pod.DEFAULT_CONTAINER)
_LONGEST_NAME: Final = 64  # no container has so long a one
_OF_GATED_CONTAINER: Final = ("name", *CONTAINER_KEYS)


def trimmed(item: dict[str, Any]) -> dict[str, Any]:
    """What of a pod with a share is ever looked at."""
    spec = item.get("spec") or {}
    is_gated = contract.SCHEDULING_GATE in pod.gates(item)
    small = {key: spec[key] for key in (_OF_GATED if is_gated else _OF_PLACED) if key in spec}
    for listed in ("containers", "initContainers"):
        if spec.get(listed):
            small[listed] = [_gated(one) if is_gated else _placed(one) for one in spec[listed]]
    metadata = {
        key: value for key, value in item["metadata"].items() if key not in {"managedFields", "ownerReferences"}
    }
    if "annotations" in metadata:
        # Others' may be a quarter of a megabyte of each pod. They are not written, and looked at are only these.
        every = metadata["annotations"] or {}
        metadata["annotations"] = {
            **{key: text for key, text in every.items() if key.startswith(contract.PREFIX)},
            **{key: every[key][:_LONGEST_NAME] for key in _OF_OTHERS if key in every},
        }
    owners = [owner for owner in item["metadata"].get("ownerReferences") or [] if owner.get("controller")]
    if owners:
        metadata["ownerReferences"] = owners
    status = item.get("status") or {}
    conditions = [one for one in status.get("conditions") or [] if one.get("type") == "PodScheduled"]
    # That there are any is all: whether it has ever been started.
    known: dict[str, Any] = {key: [{}] for key in ("containerStatuses", "initContainerStatuses") if status.get(key)}
    if status.get("nominatedNodeName"):
        known["nominatedNodeName"] = status["nominatedNodeName"]
    return {
        "apiVersion": item.get("apiVersion"),
        "kind": item.get("kind"),
        "metadata": metadata,
        "spec": small,
        "status": {"phase": status.get("phase"), **({"conditions": conditions} if conditions else {}), **known},
    }


def _gated(container: dict[str, Any]) -> dict[str, Any]:
    return {key: container[key] for key in _OF_GATED_CONTAINER if key in container}


def _placed(container: dict[str, Any]) -> dict[str, Any]:
    limits = (container.get("resources") or {}).get("limits") or {}
    ours = {key: amount for key, amount in limits.items() if key.startswith(contract.PREFIX)}
    return {"name": container.get("name"), **({"resources": {"limits": ours}} if ours else {})}
