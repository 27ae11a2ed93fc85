"""PodKey and PodAffinity: the fields of a pod that the node filters read.

Pods from one template have equal keys, so filter results are cached by key; inter-pod affinity, topology spread and
volumes are computed again for each pod.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpushare import contract, pod
from gpushare.nodefilters import pod_requests, selectors, taints, volumes

_OWN: Final = frozenset({contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY, contract.RESOURCE_IDLE})


@dataclasses.dataclass(frozen=True, slots=True)
class PodKey:
    """The part of a pod that decides which nodes fit; pods with equal keys fit the same nodes.

    amounts: in the order of messages. own: gpushare's resources, which the ledger counts too.
    """

    tolerations: tuple[taints.Toleration, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[selectors.NodeTerm, ...] | None = None
    amounts: tuple[tuple[str, int], ...] = ()
    own: tuple[tuple[str, int], ...] = ()
    ports: pod_requests.WantedPorts = pod_requests.NO_PORTS
    _hash: list[int] = dataclasses.field(default_factory=list, compare=False, repr=False)

    def __hash__(self) -> int:
        """Return the hash, computed once: a key may be large, and is hashed often."""
        if not self._hash:
            parts = (self.tolerations, self.selector, self.terms, self.amounts, self.own, self.ports)
            self._hash.append(hash(parts))
        return self._hash[0]

    @classmethod
    def from_manifest(cls, manifest: pod.PodJson) -> PodKey:
        """Read a pod that is to be placed."""
        spec = manifest.get("spec") or {}
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        amounts = tuple(pod_requests.ordered(pod_requests.requests(manifest)))
        return cls(
            tolerations=taints.tolerations(spec.get("tolerations")),
            selector=tuple(sorted((key, str(value)) for key, value in (spec.get("nodeSelector") or {}).items())),
            terms=selectors.of_nodes(required),
            amounts=tuple(amount for amount in amounts if amount[0] not in _OWN),
            own=tuple(amount for amount in amounts if amount[0] in _OWN),
            ports=pod_requests.WantedPorts.from_manifest(manifest),
        )


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
