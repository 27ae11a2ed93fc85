"""Caps: the maximum number of each thing in one pod with a share, because all of them are walked for each node.

The API server accepts pods of a megabyte and a half, and a client may have one reviewed without its being stored. So
everything that takes time for each entry, each node and each existing pod has a cap, far above any real need. The CRD
limits the shares of the ledger too; a test compares both.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

SHARES: Final = 8  # containers with separate shares: each is placed after the others
SHARERS: Final = 64  # containers that use one share together
GPUS: Final = 63  # of a share: more than any node has, and as many as the arbiter can give a container
NAMES: Final = 128  # in a list of models or of UUIDs
NAME: Final = 256  # characters of a model pattern; no model has a longer name
WILDCARDS: Final = 16  # "?" and "[" in a list of models: each pattern with one is compiled before it is matched
VALUE: Final = 4096  # characters of each of our annotations

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"

Find = Callable[[Mapping[str, Any]], int]


def exceeded(manifest: Mapping[str, Any]) -> str | None:
    """Return the first cap that a pod exceeds, as a sentence; None if it exceeds none. Accepts any JSON."""
    spec = _as_dict(manifest.get("spec"))
    for path, most, count in _OF_SPEC:
        there = count(spec)
        if there > most:
            return _sentence(f"spec.{path}", there, most)
    metadata = _as_dict(manifest.get("metadata"))
    for key, most in (("annotations", 1024), ("labels", 512)):
        if len(_as_dict(metadata.get(key))) > most:
            return _sentence(f"metadata.{key}", len(metadata[key]), most)
    together: collections.Counter[str] = collections.Counter()
    for container in map(_as_dict, (*_as_list(spec.get("containers")), *_as_list(spec.get("initContainers")))):
        for what, (most, _, count) in _OF_CONTAINER.items():
            there = count(container)
            together[what] += there
            if there > most:
                return _sentence(f"{what} of a container", there, most)
    for what, (_, most, _) in _OF_CONTAINER.items():
        if together[what] > most:
            return _sentence(f"{what} of all containers", together[what], most)
    return None


def _sentence(what: str, there: int, most: int) -> str:
    return f"{what} has {there} entries: a pod with a GPU share may have at most {most}"


def _as_dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _length(*path: str) -> Find:
    """Return the length of the list or object at the path."""

    def find(spec: Mapping[str, Any]) -> int:
        value: Any = spec
        for key in path:
            value = _as_dict(value).get(key)
        return len(value) if isinstance(value, list | Mapping) else 0

    return find


def _terms(spec: Mapping[str, Any]) -> list[Any]:
    required = _as_dict(_as_dict(_as_dict(spec.get("affinity")).get("nodeAffinity")).get(_REQUIRED))
    return _as_list(required.get("nodeSelectorTerms"))


def _node_requirements(spec: Mapping[str, Any]) -> Iterator[list[Any]]:
    for term in _terms(spec):
        for key in ("matchExpressions", "matchFields"):
            yield _as_list(_as_dict(term).get(key))


def _values(requirements: list[Any]) -> int:
    return sum(len(_as_list(_as_dict(requirement).get("values"))) for requirement in requirements)


def _label_selectors(spec: Mapping[str, Any]) -> int:
    """Return the number of entries in the label selectors by which a pod selects other pods."""
    affinity = _as_dict(spec.get("affinity"))
    count = 0
    for term in (
        *_as_list(_as_dict(affinity.get("podAffinity")).get(_REQUIRED)),
        *_as_list(_as_dict(affinity.get("podAntiAffinity")).get(_REQUIRED)),
        *_as_list(spec.get("topologySpreadConstraints")),
    ):
        count += sum(len(_as_list(_as_dict(term).get(key))) for key in _KEYS_OF_TERMS)
        for selector in (_as_dict(_as_dict(term).get(key)) for key in ("labelSelector", "namespaceSelector")):
            requirements = _as_list(selector.get("matchExpressions"))
            count += len(_as_dict(selector.get("matchLabels"))) + len(requirements)
            if count > _SELECTED:
                return count  # counting all of them would take unbounded time
            count += _values(requirements)
    return count


_CONTAINERS: Final = ("containers", "initContainers")
_NODE_TERMS: Final = 16
_SELECTED: Final = 64
_KEYS_OF_TERMS: Final = ("matchLabelKeys", "mismatchLabelKeys", "namespaces")
_OF_SPEC: Final[tuple[tuple[str, int, Find], ...]] = (
    ("containers and initContainers", 64, lambda spec: sum(len(_as_list(spec.get(key))) for key in _CONTAINERS)),
    ("tolerations", 32, _length("tolerations")),
    ("nodeSelector", 16, _length("nodeSelector")),
    ("affinity.nodeAffinity", _NODE_TERMS, lambda spec: len(_terms(spec))),
    ("affinity.nodeAffinity", _NODE_TERMS, lambda spec: sum(map(len, _node_requirements(spec)))),
    ("affinity.nodeAffinity (values)", 1024, lambda spec: sum(map(_values, _node_requirements(spec)))),
    ("affinity.podAffinity", 4, _length("affinity", "podAffinity", _REQUIRED)),
    ("affinity.podAntiAffinity", 4, _length("affinity", "podAntiAffinity", _REQUIRED)),
    ("topologySpreadConstraints", 4, _length("topologySpreadConstraints")),
    ("affinity and topologySpreadConstraints (selectors)", _SELECTED, _label_selectors),
    ("volumes", 256, _length("volumes")),
    ("schedulingGates", 64, _length("schedulingGates")),
    ("overhead", 64, _length("overhead")),
)
# The most of a container, and of all together: a few containers have many, but none has many of each.
_OF_CONTAINER: Final[dict[str, tuple[int, int, Find]]] = {
    "ports": (64, 512, _length("ports")),
    "env": (1024, 4096, _length("env")),
    "volumeMounts": (256, 1024, _length("volumeMounts")),
    "volumeDevices": (256, 512, _length("volumeDevices")),
    "resources.limits": (64, 512, _length("resources", "limits")),
    "resources.requests": (64, 512, _length("resources", "requests")),
}
