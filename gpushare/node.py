"""A tolerant reader of Node JSON: name, labels and readiness. `gpushare.nodefilters` decides where a pod can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NodeJson = Mapping[str, Any]


def name(node: NodeJson) -> str:
    """Return the node's name."""
    return str((node.get("metadata") or {}).get("name", ""))


def labels(node: NodeJson) -> Mapping[str, str]:
    """Return the labels, or an empty mapping."""
    return (node.get("metadata") or {}).get("labels") or {}


def readiness(node: NodeJson) -> str:
    """Return the status of the Ready condition, `True`, `False` or `Unknown`; `False` if there is none."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((str(entry.get("status")) for entry in conditions if entry.get("type") == "Ready"), "False")
