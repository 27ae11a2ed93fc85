"""A tolerant reader of Node JSON, and whether a pod may run there: a pinned pod cannot go elsewhere.

Judged as kube-scheduler does: readiness, cordon, taints and tolerations, node selector and required node affinity
(https://kubernetes.io/docs/concepts/scheduling-eviction/). CPU, memory and pod count are not judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpushare import pod

NodeJson = Mapping[str, Any]

_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, wanted: value in wanted,
    "NotIn": lambda value, wanted: value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, wanted: _number(value) is not None and _number(value) > _number(wanted[0]),  # type: ignore[operator]
    "Lt": lambda value, wanted: _number(value) is not None and _number(value) < _number(wanted[0]),  # type: ignore[operator]
}


def name(node: NodeJson) -> str:
    """Its name."""
    return str((node.get("metadata") or {}).get("name", ""))


def labels(node: NodeJson) -> Mapping[str, str]:
    """Its labels, or an empty mapping."""
    return (node.get("metadata") or {}).get("labels") or {}


def is_ready(node: NodeJson) -> bool:
    """Whether its Ready condition is True."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions)


def unfit(node: NodeJson, manifest: pod.PodJson) -> str | None:
    """Why the pod cannot run on the node, as the rest of a sentence ("is not ready"); None if it can."""
    if not is_ready(node):
        return "is not ready"
    spec = manifest.get("spec") or {}
    tolerations = spec.get("tolerations") or []
    for taint in _taints(node):
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not any(
            _tolerates(one, taint) for one in tolerations
        ):
            shown = "=".join(filter(None, (taint.get("key"), taint.get("value"))))
            return f"has the taint {shown}:{taint.get('effect')}, which the pod does not tolerate"
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels(node).get(key) != value:
            return f"has not the label {key}={value} of the pod's node selector"
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is not None and not any(_matches(node, term) for term in required.get("nodeSelectorTerms") or []):
        return "does not match the pod's node affinity"
    return None


def _taints(node: NodeJson) -> list[Mapping[str, Any]]:
    spec = node.get("spec") or {}
    taints = list(spec.get("taints") or [])
    if spec.get("unschedulable"):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    return taints


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _matches(node: NodeJson, term: Mapping[str, Any]) -> bool:
    expressions = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_holds(labels(node).get(one.get("key", "")), one) for one in expressions) and all(
        one.get("key") == "metadata.name" and _holds(name(node), one) for one in fields
    )


def _holds(value: str | None, expression: Mapping[str, Any]) -> bool:
    judge = _OPERATORS.get(expression.get("operator", ""))
    return judge is not None and judge(value, expression.get("values") or [""])


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
