"""Affinity rules: which nodes one pod's inter-pod affinity, topology spread and volumes rule out, and why.

The rules are computed again for each pod that has any, because every pod that starts or ends anywhere may change them.
Each rule is evaluated for all nodes at once. If a term selects namespaces by label, the stricter interpretation
applies: a pod to avoid may be in any namespace, and a pod to be near is in none.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping

from gpushare.nodefilters import node_index, pod_key, selectors
from gpushare.nodefilters.node_index import NONE, NodeIndex, Postings, Rows, Values
from gpushare.nodefilters.node_info import NodeSpec, PodInfo
from gpushare.nodefilters.pod_key import PodAffinity, PodKey, Spread, Term
from gpushare.nodefilters.selectors import Selector
from gpushare.nodefilters.volume_filters import Full
from gpushare.nodefilters.volumes import Name

_Group = tuple[str, tuple[str, ...], bool]  # namespace, flat labels, is_terminating


class PodClasses:
    """Groups of equal pods. Each group has a row here, and counts its pods by the rows of `NodeIndex`."""

    def __init__(self) -> None:
        self._rows: dict[_Group, int] = {}
        self._unused: list[int] = []
        self._on: list[dict[int, int]] = []  # by group row: node row -> number of pods
        self._labels = Postings()
        self._namespaces = Values()
        self._leaving: Rows = NONE

    def add(self, pod: PodInfo, node_row: int) -> None:
        """Count a pod on the node with this row."""
        group = pod.namespace, pod.labels, pod.is_terminating
        row = self._rows.get(group)
        if row is None:
            row = self._rows[group] = self._unused.pop() if self._unused else len(self._on)
            if row == len(self._on):
                self._on.append({})
            self._labels.put(row, pod_key.labels_of(pod.labels))
            self._namespaces.add(pod.namespace, row)
            if pod.is_terminating:
                self._leaving |= 1 << row
        there = self._on[row]
        there[node_row] = there.get(node_row, 0) + 1

    def remove(self, pod: PodInfo, node_row: int) -> None:
        """Stop counting a pod."""
        group = pod.namespace, pod.labels, pod.is_terminating
        row = self._rows[group]
        there = self._on[row]
        there[node_row] -= 1
        if not there[node_row]:
            del there[node_row]
        if not there:
            self._unused.append(self._rows.pop(group))
            self._labels.drop(row, pod_key.labels_of(pod.labels))
            self._leaving &= ~(1 << row)
            self._namespaces.discard(pod.namespace, row)

    def matching(self, term: Term, *, when_vague: bool) -> Rows:
        """Return the groups whose pods `term` selects."""
        if term.every_namespace or (term.is_vague and when_vague):
            known = self._labels.every_row
        else:
            known = node_index.union(map(self._namespaces.rows, term.namespaces))
        return known and known & self._labels.matching(term.selector)

    def staying(self, namespace: str, selector: Selector) -> Rows:
        """Return the selected groups of a namespace, without terminating pods."""
        known = self._namespaces.rows(namespace) & ~self._leaving
        return known and known & self._labels.matching(selector)

    def nodes(self, groups: Rows) -> Rows:
        """Return the nodes that run a pod of these groups."""
        node_rows: set[int] = set()
        for row in node_index.row_numbers(groups):
            node_rows.update(self._on[row])
        return node_index.of_rows(node_rows)

    def counts(self, groups: Rows) -> Mapping[int, int]:
        """Return how many pods of these groups each node has, by row."""
        counts: dict[int, int] = collections.defaultdict(int)
        for row in node_index.row_numbers(groups):
            for node_row, count in self._on[row].items():
                counts[node_row] += count
        return counts


Reach = Callable[[Name], tuple[tuple[selectors.NodeTerm, ...], str] | None]
# Anti-affinity of running pods -> number of such pods by node.
Repelling = Mapping[tuple[Term, ...], Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class AffinityRule:
    """One constraint. `passing`: the nodes that satisfy it. `why`: the reason for a node that does not, as a clause."""

    passing: Rows
    why: Callable[[NodeSpec], str]


def rules(
    asked: PodAffinity,
    shape: PodKey,
    *,
    nodes: NodeIndex,
    groups: PodClasses,
    repelling: Repelling,
    itself: PodInfo | None,
    missing: str,
    full: Mapping[str, Full],
    reach: Reach,
) -> list[AffinityRule]:
    """Return the constraints to check on each node; most pods have none.

    `groups` and `full` exclude the pod itself, which `repelling` may include: `itself`. `missing`: a claim of the pod
    that does not exist, or empty. `full`: nodes that cannot attach the pod's volumes. `reach`: the nodes that can reach
    the volume of a claim.
    """
    affinity_rules: list[AffinityRule] = []
    if missing:
        said = f"cannot mount the pod's claim {missing}, which does not exist"
        affinity_rules.append(AffinityRule(NONE, lambda _: said))
    if full:
        closed = node_index.of_rows(nodes.row(name) for name in full if name in nodes)
        affinity_rules.append(AffinityRule(nodes.labels.every_row & ~closed, lambda node: str(full[node.name])))
    affinity_rules += [
        AffinityRule(nodes.matching(reached[0]), functools.partial(_fixed_reason, reached[1]))
        for claim in dict.fromkeys(mount.claim for mount in asked.mounts)
        if (reached := reach((asked.namespace, claim))) is not None
    ]
    affinity_rules += [_spread(spread, asked, shape, nodes, groups) for spread in asked.spread]
    if asked.affinity:
        affinity_rules.append(_near(asked, nodes, groups))
    if asked.anti_affinity:
        far = ((term, groups.nodes(groups.matching(term, when_vague=True))) for term in asked.anti_affinity)
        affinity_rules.append(_excluding(far, nodes, "the pod's anti-affinity keeps it away from a pod there"))
    repelled = _repelling_domains(asked, nodes, repelling, itself)
    if repelled:
        affinity_rules.append(_excluding(repelled, nodes, "the anti-affinity of a pod there keeps it away"))
    return affinity_rules


def _fixed_reason(why: str, _: NodeSpec) -> str:
    return why


def _near(asked: PodAffinity, nodes: NodeIndex, groups: PodClasses) -> AffinityRule:
    """Require a pod that matches all terms nearby. The first pod of a group that selects itself may start anywhere."""
    meant = (groups.matching(term, when_vague=False) for term in asked.affinity)
    there = groups.nodes(functools.reduce(operator.and_, meant))
    hit = {key: _around(key, there, nodes) for key in dict.fromkeys(term.topology_key for term in asked.affinity)}
    is_first = not any(hit.values()) and all(
        term.selects(asked.namespace, asked.labels, when_vague=False) for term in asked.affinity
    )
    rows = nodes.labels.every_row
    for key, values in hit.items():
        rows &= nodes.labels.having(key) if is_first else node_index.union(values.values())

    def why(node: NodeSpec) -> str:
        for key, values in hit.items():
            value = node.labels.get(key)
            if value is None:
                return f"has no label {key}, the topology key of the pod's affinity"
            if value not in values and not is_first:
                return f"has no pod in its {key} that the pod's affinity requires"
        raise AssertionError(f"{node.name} was ruled out by an affinity that it satisfies")

    return AffinityRule(rows, why)


def _repelling_domains(
    asked: PodAffinity, nodes: NodeIndex, repelling: Repelling, itself: PodInfo | None
) -> list[tuple[Term, Rows]]:
    repelled: list[tuple[Term, Rows]] = []
    for terms, holders in repelling.items():
        meant = [term for term in terms if term.selects(asked.namespace, asked.labels, when_vague=True)]
        if not meant:
            continue
        own = itself.node if itself is not None and itself.anti_affinity == terms else None
        there = node_index.of_rows(nodes.row(name) for name in holders if holders[name] > (name == own))
        repelled += [(term, there) for term in meant if there]
    return repelled


def _excluding(far: Iterable[tuple[Term, Rows]], nodes: NodeIndex, said: str) -> AffinityRule:
    """Rule out the topology domains of these nodes, by the topology key of each term."""
    by_key: dict[str, Rows] = collections.defaultdict(int)
    for term, there in far:
        by_key[term.topology_key] |= there
    hit = {key: _around(key, there, nodes) for key, there in by_key.items()}
    closed = node_index.union(rows for values in hit.values() for rows in values.values())

    def why(node: NodeSpec) -> str:
        key, value = next((key, value) for key, value in node.labels.items() if value in hit.get(key, ()))
        return f"is in {key}={value}, and {said}"

    return AffinityRule(nodes.labels.every_row & ~closed, why)


def _around(key: str, there: Rows, nodes: NodeIndex) -> dict[str, Rows]:
    """Return the values of a topology key on these nodes, each with all nodes that have it."""
    if not there & nodes.labels.having(key):
        return {}
    return {value: rows for value, rows in nodes.labels.by_value(key).items() if rows & there}


def _spread(rule: Spread, asked: PodAffinity, shape: PodKey, nodes: NodeIndex, groups: PodClasses) -> AffinityRule:
    """Check the skew as if the pod were not pinned, and also once it is pinned.

    A pin leaves one eligible node and so a single domain, whose skew is always 0; users do not mean that. With
    `minDomains` above 1 the effect is the opposite: a single domain is too few, so its pods are compared with 0.
    """
    eligible = nodes.labels.every_row
    for key in {spread.topology_key for spread in asked.spread}:
        eligible &= nodes.labels.having(key)
    if rule.honors_affinity:
        eligible &= nodes.selected(shape)
    if rule.honors_taints:
        eligible &= nodes.tolerated(shape, declared_only=True)
    here: Mapping[int, int] = {}
    if not rule.selector.matches_all:
        here = groups.counts(groups.staying(asked.namespace, rule.selector))
    domains = nodes.labels.by_value(rule.topology_key)
    counts = {value: 0 for value, rows in domains.items() if rows & eligible}
    for row, count in here.items():
        if eligible >> row & 1:
            counts[nodes.at(row).labels[rule.topology_key]] += count
    itself = int(rule.selector.matches(asked.labels))
    least = 0 if len(counts) < rule.min_domains else min(counts.values(), default=math.inf)
    is_pinned_too = rule.honors_affinity and rule.min_domains > 1

    def skew(value: str, row: int) -> float:
        unpinned = counts.get(value, 0) + itself - least
        return max(unpinned, (here.get(row, 0) if eligible >> row & 1 else 0) + itself) if is_pinned_too else unpinned

    rows = NONE
    for value, having in domains.items():
        if counts.get(value, 0) + itself - least <= rule.max_skew:
            rows |= having
    if is_pinned_too:
        crowded = (row for row, count in here.items() if eligible >> row & 1 and count + itself > rule.max_skew)
        rows &= ~node_index.of_rows(crowded)
        if itself > rule.max_skew:
            rows = NONE

    def why(node: NodeSpec) -> str:
        value = node.labels.get(rule.topology_key)
        if value is None:
            return f"has no label {rule.topology_key}, the topology key of the pod's spread constraint"
        return (
            f"is in {rule.topology_key}={value}, where one more pod would make the skew "
            f"{skew(value, nodes.row(node.name)):g}; the spread constraint allows {rule.max_skew}"
        )

    return AffinityRule(rows, why)
