"""Indexes of nodes and pods by their labels, which evaluate a selector for all of them at once.

A set of rows is an integer with one bit per row, so an intersection or a union is one operation at any size. The cost
depends on the number of requirements and values, not on the number of objects.
"""

from __future__ import annotations

import bisect
import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpushare import contract
from gpushare.nodefilters import selectors, taints
from gpushare.nodefilters.node_info import NodeSpec
from gpushare.nodefilters.pod_key import PodKey
from gpushare.nodefilters.selectors import Requirement, Selector

Rows = int  # a set of rows: bit n stands for row n

NONE: Final[Rows] = 0
_ONE: Final = (1).__lshift__


def union(several: Iterable[Rows]) -> Rows:
    """Return the union of several sets."""
    return functools.reduce(operator.or_, several, NONE)


def of_rows(rows: Iterable[int]) -> Rows:
    """Return the set of these rows."""
    return union(map(_ONE, rows))


def row_numbers(rows: Rows) -> Iterator[int]:
    """Return the rows of a set, in ascending order."""
    return (found.start() for found in re.finditer("1", bin(rows)[:1:-1]))


class Values:
    """The rows that have each value of one label key. Most values have a single row, which is stored as an int."""

    __slots__ = ("all", "by_value", "having", "numbers", "sets")

    def __init__(self) -> None:
        self.having: Rows = NONE
        self.by_value: dict[str, int | set[int]] = {}
        self.sets: dict[str, Rows] = {}  # cache, filled on first use
        self.all: dict[str, Rows] | None = None
        # cache: numeric values in ascending order, and their rows
        self.numbers: tuple[list[int], list[Rows]] | None = None

    def add(self, value: str, row: int) -> None:
        """Record that the row has this value."""
        self._change(value)
        known = self.by_value.get(value)
        if known is None:
            self.by_value[value] = row
        elif isinstance(known, set):
            known.add(row)
        else:
            self.by_value[value] = {known, row}
        self.having |= 1 << row

    def discard(self, value: str, row: int) -> None:
        """Remove the row from this value, which it must have."""
        self._change(value)
        known = self.by_value[value]
        if isinstance(known, set) and len(known) > 1:
            known.discard(row)
        else:
            del self.by_value[value]
        self.having &= ~(1 << row)

    def rows(self, value: str) -> Rows:
        """Return the rows with this value."""
        known = self.by_value.get(value)
        if known is None:
            return NONE
        if not isinstance(known, set):
            return 1 << known
        rows = self.sets.get(value)
        if rows is None:
            rows = self.sets[value] = of_rows(known)
        return rows

    def all_rows(self) -> Mapping[str, Rows]:
        """Return the rows of each value."""
        if self.all is None:
            self.all = {value: self.rows(value) for value in self.by_value}
        return self.all

    def compared(self, bound: int, *, above: bool) -> Rows:
        """Return the rows whose value is a number above the bound, or else below it."""
        if self.numbers is None:
            pairs = [(number, value) for value in self.by_value if (number := selectors.number(value)) is not None]
            pairs.sort()
            self.numbers = [number for number, _ in pairs], [self.rows(value) for _, value in pairs]
        numbers, rows = self.numbers
        at = slice(bisect.bisect_right(numbers, bound), None) if above else slice(bisect.bisect_left(numbers, bound))
        return union(rows[at])

    def _change(self, value: str) -> None:
        self.sets.pop(value, None)
        self.all = self.numbers = None


_NO_VALUES: Final = Values()


class Postings:
    """The labels of all rows. Drop a row before you put it again."""

    def __init__(self) -> None:
        self.every_row: Rows = NONE
        self._keys: dict[str, Values] = {}

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        """Add a row with these labels."""
        self.every_row |= 1 << row
        for key, value in labels.items():
            if key not in self._keys:
                self._keys[key] = Values()
            self._keys[key].add(value, row)

    def drop(self, row: int, labels: Mapping[str, str]) -> None:
        """Remove a row; `labels`: the ones it was added with."""
        self.every_row &= ~(1 << row)
        for key, value in labels.items():
            self._keys[key].discard(value, row)
            if not self._keys[key].having:
                del self._keys[key]

    def having(self, key: str) -> Rows:
        """Return the rows that have this key."""
        return self._keys.get(key, _NO_VALUES).having

    def of_value(self, key: str, value: str) -> Rows:
        """Return the rows that have this key with this value."""
        return self._keys.get(key, _NO_VALUES).rows(value)

    def by_value(self, key: str) -> Mapping[str, Rows]:
        """Return the rows of each value of a key."""
        return self._keys.get(key, _NO_VALUES).all_rows()

    def matching(self, selector: Selector) -> Rows:
        """Return the rows whose labels `selector` matches."""
        rows = NONE if selector.is_void else self.every_row
        for requirement in selector.requirements:
            if not rows:
                break
            rows &= self._holding(requirement)
        return rows

    def _holding(self, requirement: Requirement) -> Rows:
        values = self._keys.get(requirement.key)
        having = NONE if values is None else values.having
        if requirement.operator == "Exists":
            return having
        if requirement.operator == "DoesNotExist":
            return self.every_row & ~having
        if requirement.operator in {"In", "NotIn"}:
            named = NONE if values is None else union(map(values.rows, requirement.values))
            return named if requirement.operator == "In" else self.every_row & ~named
        bound = selectors.number(*requirement.values) if len(requirement.values) == 1 else None
        if values is None or bound is None or requirement.operator not in {"Gt", "Lt"}:
            return NONE
        return values.compared(bound, above=requirement.operator == "Gt")


class NodeIndex(dict[str, NodeSpec]):
    """Nodes by name and by row, with the filters that depend on the Node alone.

    Change it by `put` and `remove` only. A name keeps its row until `release`, even while it has no Node.
    """

    def __init__(self) -> None:
        super().__init__()
        self.labels = Postings()
        self.doubled: set[str] = set()  # hostname labels that several nodes have
        self._by_host: dict[str, set[str]] = {}
        self.changes = 0  # number of changes, to tell when results are outdated
        self._names = Postings()
        self._rows: dict[str, int] = {}
        self._at: dict[int, NodeSpec] = {}
        self._unused: list[int] = []
        self._tainted: dict[tuple[taints.Taint, ...], Rows] = {}

    def row(self, name: str) -> int:
        """Return the row of a name; assign one if it has none."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._unused.pop() if self._unused else len(self._rows)
        return row

    def at(self, row: int) -> NodeSpec:
        """Return the Node of a row, which must have one."""
        return self._at[row]

    def namesakes(self, node: NodeSpec | None) -> list[str]:
        """Return other nodes with the same hostname label, by which pods are pinned; it should be unique."""
        if node is None or node.hostname is None:
            return []
        return sorted(self._by_host.get(node.hostname, set()) - {node.name})

    def release(self, name: str) -> None:
        """Free the row of a name without a Node. Call this when no pod uses the name."""
        if name not in self and name in self._rows:
            self._unused.append(self._rows.pop(name))

    def put(self, name: str, node: NodeSpec) -> None:
        """Add or replace a Node."""
        self._drop(name)
        row = self.row(name)
        self[name] = self._at[row] = node
        self.labels.put(row, node.labels)
        self._names.put(row, {selectors.NAME_FIELD: node.name})
        if node.hostname is not None:
            alike = self._by_host.setdefault(node.hostname, set())
            alike.add(name)
            if len(alike) > 1:
                self.doubled.add(node.hostname)
        self._tainted[node.taints] = self._tainted.get(node.taints, NONE) | 1 << row

    def remove(self, name: str) -> None:
        """Remove a Node; its row stays reserved until it is released."""
        self._drop(name)
        self.pop(name, None)

    def selected(self, shape: PodKey) -> Rows:
        """Return the nodes that the pod's node selector and node affinity allow."""
        rows = self.labels.every_row
        for key, value in shape.selector:
            rows &= self.labels.of_value(key, value)
        return rows if shape.terms is None else rows & self.matching(shape.terms)

    def matching(self, terms: tuple[selectors.NodeTerm, ...]) -> Rows:
        """Return the nodes that match any of the terms."""
        return union(self.labels.matching(term.labels) & self._names.matching(term.names) for term in {*terms})

    def tolerated(self, shape: PodKey, *, declared_only: bool = False) -> Rows:
        """Return the nodes whose taints the pod tolerates. declared_only: only those of the Node's spec count."""
        allowed = taints.Tolerated(shape.tolerations)
        return union(
            rows
            for node_taints, rows in self._tainted.items()
            if allowed.first_untolerated(taint for taint in node_taints if not (declared_only and taint.phrase)) is None
        )

    def _drop(self, name: str) -> None:
        self.changes += 1
        before = self.get(name)
        if before is None:
            return
        row = self._rows[name]
        del self._at[row]
        self.labels.drop(row, before.labels)
        self._names.drop(row, {selectors.NAME_FIELD: before.name})
        if before.hostname is not None:
            alike = self._by_host[before.hostname]
            alike.discard(name)
            if len(alike) == 1:
                self.doubled.discard(before.hostname)
            elif not alike:
                del self._by_host[before.hostname]
        self._tainted[before.taints] &= ~(1 << row)
        if not self._tainted[before.taints]:
            del self._tainted[before.taints]


class StaticCandidates:
    """The nodes that pass kube-scheduler's filters on the Node alone, for one pod key. Valid until a Node changes."""

    def __init__(self, nodes: NodeIndex, shape: PodKey) -> None:
        self._shape = shape
        self._tolerated = taints.Tolerated(shape.tolerations)
        tolerated = nodes.tolerated(shape)
        self.rows: Rows = tolerated & nodes.labels.having(contract.HOSTNAME_LABEL) & nodes.selected(shape)

    def why_not(self, node: NodeSpec) -> str:
        """Return why a node is not a candidate, as a clause, in the scheduler's order of filters."""
        taint = self._tolerated.first_untolerated(node.taints)
        if taint is not None:
            return taint.phrase or f"has the taint {taint}, which the pod does not tolerate"
        if node.hostname is None:
            return f"has no label {contract.HOSTNAME_LABEL}, which is needed to pin a pod to it"
        for key, value in self._shape.selector:
            if node.labels.get(key) != value:
                return f"lacks the label {key}={value} of the pod's nodeSelector"
        return "does not match the pod's node affinity"
