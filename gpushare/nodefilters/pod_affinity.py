"""PodAffinity: the required inter-pod affinity, anti-affinity and topology spread of a pod.

See https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import pod
from gpushare.nodefilters import selectors, volumes


@dataclasses.dataclass(frozen=True, slots=True)
class Term:
    """The pods that an affinity term selects, and the node label whose value defines a topology domain.

    `is_vague`: the term selects namespaces by label, and namespace labels are unknown here.
    """

    topology_key: str
    selector: selectors.Selector
    namespaces: frozenset[str]
    every_namespace: bool = False
    is_vague: bool = False

    def selects(self, namespace: str, labels: selectors.Labels, *, when_vague: bool) -> bool:
        """Whether the term selects a pod; `when_vague`: the answer if its namespace may or may not be selected."""
        known = self.every_namespace or namespace in self.namespaces
        return (known or (self.is_vague and when_vague)) and self.selector.matches(labels)


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint with `DoNotSchedule`."""

    topology_key: str
    selector: selectors.Selector
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PodAffinity:
    """The inter-pod constraints of one pod. `mounts`: volumes that only some nodes can reach or attach."""

    namespace: str
    labels: Mapping[str, str]
    affinity: tuple[Term, ...] = ()
    anti_affinity: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()
    mounts: tuple[volumes.VolumeUse, ...] = ()

    @classmethod
    def from_manifest(cls, manifest: pod.PodJson) -> PodAffinity:
        """Read the affinity terms and topology spread constraints of a pod."""
        spec, labels = manifest.get("spec") or {}, _labels(manifest)
        namespace = pod.namespaced_name(manifest)[0] or "default"
        return cls(
            namespace=namespace,
            labels=labels,
            affinity=_terms(spec, "podAffinity", namespace, labels),
            anti_affinity=anti_affinity(manifest),
            spread=tuple(
                _spread(constraint, labels)
                for constraint in spec.get("topologySpreadConstraints") or []
                if constraint.get("whenUnsatisfiable") == "DoNotSchedule"
            ),
            mounts=volumes.mounts(manifest),
        )


def anti_affinity(manifest: pod.PodJson) -> tuple[Term, ...]:
    """Return the required anti-affinity terms of a pod."""
    spec = manifest.get("spec") or {}
    namespace = pod.namespaced_name(manifest)[0] or "default"
    return _terms(spec, "podAntiAffinity", namespace, _labels(manifest))


def flat_labels(manifest: pod.PodJson) -> tuple[str, ...]:
    """Return a pod's labels as (key, value, key, value, …): compact, and shared by many pods."""
    return tuple(sys.intern(text) for pair in sorted(_labels(manifest).items()) for text in pair)


def labels_of(flat: tuple[str, ...]) -> dict[str, str]:
    """Return the labels of `flat_labels` as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _labels(manifest: pod.PodJson) -> Mapping[str, str]:
    return (manifest.get("metadata") or {}).get("labels") or {}


def _terms(spec: Mapping[str, Any], kind: str, namespace: str, labels: Mapping[str, str]) -> tuple[Term, ...]:
    declared = ((spec.get("affinity") or {}).get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return tuple(_term(term, namespace, labels) for term in declared or [])


def _term(declared: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> Term:
    selector = selectors.of_labels(declared.get("labelSelector"))
    same = _own(declared.get("matchLabelKeys"), labels, "In")
    other = _own(declared.get("mismatchLabelKeys"), labels, "NotIn")
    by_labels = declared.get("namespaceSelector")
    named = frozenset(map(str, declared.get("namespaces") or ()))
    chosen = selectors.of_labels(by_labels) if by_labels is not None else None
    return Term(
        topology_key=str(declared.get("topologyKey", "")),
        selector=selector.with_requirements(*same, *other),
        namespaces=named if named or chosen is not None else frozenset({namespace}),
        every_namespace=chosen is not None and chosen.matches_all,
        is_vague=chosen is not None and not chosen.matches_all,
    )


def _spread(declared: Mapping[str, Any], labels: Mapping[str, str]) -> Spread:
    selector = selectors.of_labels(declared.get("labelSelector"))
    return Spread(
        topology_key=str(declared.get("topologyKey", "")),
        selector=selector.with_requirements(*_own(declared.get("matchLabelKeys"), labels, "In")),
        max_skew=int(declared.get("maxSkew") or 1),
        min_domains=int(declared.get("minDomains") or 1),
        honors_affinity=declared.get("nodeAffinityPolicy", "Honor") == "Honor",
        honors_taints=declared.get("nodeTaintsPolicy", "Ignore") == "Honor",
    )


def _own(keys: Iterable[str] | None, labels: Mapping[str, str], operator: str) -> list[selectors.Requirement]:
    """Return a requirement for each of these keys that the pod itself has as a label."""
    return [selectors.Requirement(key, operator, (labels[key],)) for key in keys or () if key in labels]
