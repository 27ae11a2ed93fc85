"""Shape: whether a saved object is built as Kubernetes builds it.

What an API server sends is; a file of `--from` was perhaps written by hand, and everything behind it relies on that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpushare import contract

KINDS = frozenset({contract.GPUNODE_KIND, "Pod", "Node", "Event", "PodDisruptionBudget"})

# Of each of them, where it is there: what holds fields, what is text, what holds text by a name, and lists of objects.
_FIELDS: Sequence[Sequence[str]] = (("metadata",), ("spec",), ("status",), ("involvedObject",), ("regarding",))
_WORDS: Sequence[Sequence[str]] = (
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("spec", "nodeName"),
    ("status", "phase"),
)
_TEXTS: Sequence[Sequence[str]] = (("metadata", "annotations"), ("metadata", "labels"))
_LISTS: Sequence[Sequence[str]] = (
    ("spec", "containers"),
    ("spec", "initContainers"),
    ("spec", "schedulingGates"),
    ("spec", "tolerations"),
    ("spec", "taints"),
    ("spec", "allocations"),
    ("status", "gpus"),
    ("status", "conditions"),
    ("status", "containerStatuses"),
    ("status", "initContainerStatuses"),
    ("metadata", "ownerReferences"),
)


def problem(item: Mapping[str, Any]) -> str:
    """What of it is not as it should be, as the end of a sentence; empty if nothing is."""
    return next(_problems(item), "")


def _problems(item: Mapping[str, Any]) -> Iterator[str]:
    for path in _FIELDS:
        if not isinstance(_at(item, path), Mapping):
            yield f"{'.'.join(path)} has no fields"
            return  # what lies below cannot be looked at
    for path in _WORDS:
        if not isinstance(_at(item, path) or "", str):
            yield f"{'.'.join(path)} is not text: put it in quotes"
    for path in _TEXTS:
        found = _at(item, path)
        if not isinstance(found, Mapping):
            yield f"{'.'.join(path)} has no fields"
            continue
        for key, value in found.items():
            if not isinstance(value, str):
                yield f'{".".join(path)} has "{key}" that is not text: put it in quotes'
    for path in _LISTS:
        found = _at(item, path) or ()
        if not isinstance(found, list | tuple) or not all(isinstance(one, Mapping) for one in found):
            yield f"{'.'.join(path)} is no list of objects"


def _at(item: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = item
    for key in path:
        found = found.get(key)
        if found is None:
            return {}
    return found
