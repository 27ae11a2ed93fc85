"""Documents: the output of `-o json` and `-o yaml`. Their schema is stable; a breaking change gets a new version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

API_VERSION = "plugin.gpushare.io/v1alpha1"  # of these documents; no API server serves them

Document = dict[str, Any]


def listing(kind: str, items: Iterable[Mapping[str, Any]], **more: Any) -> Document:
    """Return A list as kubectl's are: `apiVersion`, `kind`, `items`. The items are an iterator: made one by one,
    once.
    """
    return {"apiVersion": API_VERSION, "kind": kind, "items": iter(items), **more}


def single(kind: str, content: Mapping[str, Any]) -> Document:
    """Return one object as a document."""
    return {"apiVersion": API_VERSION, "kind": kind, **content}
