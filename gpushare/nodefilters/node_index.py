"""NodeIndex: all Nodes, with the filters that depend on the Node alone, evaluated for all nodes at once."""

from __future__ import annotations

from gpushare import contract
from gpushare.nodefilters import label_index, selectors, taints
from gpushare.nodefilters.label_index import Postings, Rows
from gpushare.nodefilters.node_info import NodeSpec
from gpushare.nodefilters.pod_key import PodKey


class NodeIndex(dict[str, NodeSpec]):
    """Nodes by name and by row; change it by `put` and `remove` only. A name keeps its row until `release`, even while
    it has no Node.
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
        self._tainted[node.taints] = self._tainted.get(node.taints, label_index.NONE) | 1 << row

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
        return label_index.union(
            self.labels.matching(term.labels) & self._names.matching(term.names) for term in dict.fromkeys(terms)
        )

    def tolerated(self, shape: PodKey, *, declared_only: bool = False) -> Rows:
        """Return the nodes whose taints the pod tolerates. declared_only: only those of the Node's spec count."""
        allowed = taints.Tolerated(shape.tolerations)
        return label_index.union(
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
