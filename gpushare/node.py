"""A tolerant reader of Node JSON: name, labels, readiness. Whether a pod can run there: `gpushare.nodefilters`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NodeJson = Mapping[str, Any]


def name(node: NodeJson) -> str:
    """The node's name."""
    return str((node.get("metadata") or {}).get("name", ""))


def labels(node: NodeJson) -> Mapping[str, str]:
    """Its labels, or an empty mapping."""
    return (node.get("metadata") or {}).get("labels") or {}


def readiness(node: NodeJson) -> str:
    """The status of its Ready condition, `True`, `False` or `Unknown`; `False` where there is none."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((str(entry.get("status")) for entry in conditions if entry.get("type") == "Ready"), "False")
