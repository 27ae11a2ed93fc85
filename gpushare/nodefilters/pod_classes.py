"""PodClasses: running pods grouped by namespace and labels, so that selectors match each group once."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from gpushare.nodefilters import label_index, pod_affinity
from gpushare.nodefilters.label_index import NONE, Postings, Rows, Values
from gpushare.nodefilters.node_info import PodInfo
from gpushare.nodefilters.pod_affinity import Term
from gpushare.nodefilters.selectors import Selector

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
            row = self._rows[group] = self._begin(pod)
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
            del self._rows[group]
            self._end(row, pod)

    def matching(self, term: Term, *, when_vague: bool) -> Rows:
        """Return the groups whose pods `term` selects."""
        if term.every_namespace or (term.is_vague and when_vague):
            known = self._labels.every_row
        else:
            known = label_index.union(map(self._namespaces.rows, term.namespaces))
        return known and known & self._labels.matching(term.selector)

    def staying(self, namespace: str, selector: Selector) -> Rows:
        """Return the selected groups of a namespace, without terminating pods."""
        known = self._namespaces.rows(namespace) & ~self._leaving
        return known and known & self._labels.matching(selector)

    def nodes(self, groups: Rows) -> Rows:
        """Return the nodes that run a pod of these groups."""
        node_rows: set[int] = set()
        for row in label_index.row_numbers(groups):
            node_rows.update(self._on[row])
        return label_index.of_rows(node_rows)

    def counts(self, groups: Rows) -> Mapping[int, int]:
        """Return how many pods of these groups each node has, by row."""
        counts: dict[int, int] = collections.defaultdict(int)
        for row in label_index.row_numbers(groups):
            for node_row, count in self._on[row].items():
                counts[node_row] += count
        return counts

    def _begin(self, pod: PodInfo) -> int:
        row = self._unused.pop() if self._unused else len(self._on)
        if row == len(self._on):
            self._on.append({})
        self._labels.put(row, pod_affinity.labels_of(pod.labels))
        self._namespaces.add(pod.namespace, row)
        if pod.is_terminating:
            self._leaving |= 1 << row
        return row

    def _end(self, row: int, pod: PodInfo) -> None:
        self._unused.append(row)
        self._labels.drop(row, pod_affinity.labels_of(pod.labels))
        self._leaving &= ~(1 << row)
        self._namespaces.discard(pod.namespace, row)
