"""Builders for API objects, so that a test shows only the fields it is about."""

from __future__ import annotations

from typing import Any


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
