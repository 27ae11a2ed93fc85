"""`top -i`: nodes, their GPUs and the pods on them as a tree, with the figures of `top`.

A row is a key and the object behind it. Its cells are made when it is drawn, and a node's figures are kept until its
GPUNode changes. `tree_rows` has the rows that are shown.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gpushare import pod
from gpushare.allocation import ONLY_ARBITER, Allocation, Isolation
from kubectl_gpushare.output.values import Cell, Column, Row, Table
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import cell_figures, gpu_summary, gpu_table, node_table, pod_table, tenants
from kubectl_gpushare.views.gpu_summary import GpuSummary
from kubectl_gpushare.views.node_table import NodeRow
from kubectl_gpushare.views.pod_table import PodRow

Key = tuple[str, ...]
UNPLACED: Final[Key] = ("unplaced",)
# Columns that the list of nodes and the list of GPUs can both be sorted by.
SORT_KEYS: Final = tuple(key for key in node_table.SORT_KEYS if key in gpu_table.SORT_KEYS)
MEASURED_KEYS: Final = frozenset({"used", "busy"})
_LEAST: Final = {"NAME": 22, "STATUS": len("OverCommitted")}  # names are indented; text stands beside colour
_OF_PODS: Final = {"REQUEST": "COMPUTE", "STATE": "STATUS"}  # column of `top pods` -> column of the tree


class HeldShare(NamedTuple):
    """The part of a GPU that a pod holds."""

    gpu: GpuSummary
    entry: Allocation


Item = NodeRow | GpuSummary | HeldShare | PodRow | None


class TreeRow(NamedTuple):
    """A row. `item` is None for the title above the pods that hold nothing."""

    key: Key
    depth: int
    item: Item
    has_children: bool = False
    is_open: bool = False

    @property
    def subject(self) -> tuple[str, str]:
        """The row's object as verbs name it: node, gpu or pod, and its name; empty for a title."""
        match self.item:
            case NodeRow():
                return "node", self.item.node.name
            case GpuSummary():
                return "gpu", self.item.name
            case HeldShare():
                return "pod", f"{self.item.entry.pod.namespace}/{self.item.entry.pod.name or pod_table.UNNAMED}"
            case PodRow():
                return "pod", f"{self.item.namespace}/{self.item.name}"
        return "", ""


@dataclasses.dataclass(frozen=True)
class NodeBranch:
    """A node, and the lower-case texts by which filters find it, its GPUs and its pods."""

    row: NodeRow

    @functools.cached_property
    def own(self) -> str:
        row = self.row
        labels = (f"{key}={value}" for key, value in row.node.labels.items())
        return " ".join((row.node.name, node_table.models(row.gpus), row.node.config, *row.statuses, *labels)).lower()

    @functools.cached_property
    def by_gpu(self) -> tuple[tuple[str, str], ...]:
        """The text of each GPU, and that of its pods."""
        return tuple((_text_of_gpu(gpu), " ".join(str(holder.pod) for holder in gpu.holders)) for gpu in self.row.gpus)

    @functools.cached_property
    def whole(self) -> str:
        return " ".join((self.own, *(text for texts in self.by_gpu for text in texts)))


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """The rows that a person has chosen to see."""

    opened: frozenset[Key] = frozenset()
    words: tuple[str, ...] = ()  # lower-case; a row is shown if it or something below it has all of them
    sort_by: str = "name"


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterTree:
    """The cluster at one moment."""

    snapshot: Snapshot
    branches: tuple[NodeBranch, ...]  # in the order of names
    unplaced: tuple[PodRow, ...]  # pods that ask for a share and hold none
    columns: tuple[Column, ...]
    totals: Mapping[str, str | Cell]
    caption: str
    problems: tuple[str, ...]
    now: float
    pods: tenants.Pods
    known: Mapping[str, NodeBranch]  # all nodes, also if one namespace is shown

    @property
    def with_used(self) -> bool:
        return self.snapshot.usage is not None


def build(
    snapshot: Snapshot,
    unbound: Sequence[pod.PodJson] | None = None,
    *,
    now: float,
    namespace: str = "",
    previous: ClusterTree | None = None,
) -> ClusterTree:
    """Return the tree of a snapshot, with unchanged nodes from `previous`.

    unbound: pods on no node; only read where `snapshot.pods` is None, as not all pods are read.
    namespace: if any, only GPUs with pods of it are shown.
    """
    known = _known(snapshot, previous)
    branches = [known[node.name] for node in sorted(snapshot.nodes, key=lambda node: gpu_summary.natural(node.name))]
    if namespace:
        branches = [branch for branch in branches if any(is_in(namespace, gpu) for gpu in branch.row.gpus)]
    rows = [branch.row for branch in branches]
    gpus = [gpu for row in rows for gpu in row.gpus]
    totals, caption = node_table.sums(rows, with_used=snapshot.usage is not None)
    pods = snapshot.pods if snapshot.pods is not None else unbound
    return ClusterTree(
        snapshot,
        tuple(branches),
        _unplaced(snapshot, pods or (), namespace),
        _columns(gpus, with_used=snapshot.usage is not None),
        totals,
        caption,
        (*gpu_summary.ledger_problems([row.node for row in rows], gpus), *snapshot.notes),
        now,
        tenants.Pods.from_snapshot(snapshot),
        known,
    )


def all_keys(tree: ClusterTree) -> frozenset[Key]:
    keys: set[Key] = {UNPLACED}
    for branch in tree.branches:
        keys.add(node_key(branch))
        keys.update(gpu_key(gpu) for gpu in branch.row.gpus)
    return frozenset(keys)


def cells(tree: ClusterTree, row: TreeRow, *, marks: tuple[str, str, str]) -> Row:
    """Return the cells of a row. `marks` stand before a closed and an open row, and below an open one."""
    name, found = _figures(tree, row.item)
    mark = marks[row.is_open] if row.has_children else " "
    found["NAME"] = f"{f'{marks[2]} ' * row.depth}{mark} {name}"
    # Colour means trouble here: no green for what is well.
    return [_calm(found.get(column.header, "")) for column in tree.columns]


def _figures(tree: ClusterTree, item: Item) -> tuple[str, dict[str, str | Cell]]:
    match item:
        case NodeRow():
            return item.node.name, _first(node_table.table([item], with_used=tree.with_used, now=tree.now))
        case GpuSummary():
            name = item.gpu.uuid if item.gone else f"GPU {item.gpu.index}"
            return name, _first(gpu_table.table([item], with_used=tree.with_used))
        case HeldShare():
            row = pod_table.on_gpu(item.entry, tree.pods.holder(item.entry), item.gpu, tree.snapshot)
            return f"{row.namespace}/{row.name}", _first_of_pods(tree, row)
        case PodRow():
            return f"{item.namespace}/{item.name}", _first_of_pods(tree, item)
    count = len(tree.unplaced)
    return f"{count} {'pod' if count == 1 else 'pods'} without share", {}


def _first(table: Table) -> dict[str, str | Cell]:
    return {column.header: cell for column, cell in zip(table.columns, table.rows[0], strict=True)}


def _first_of_pods(tree: ClusterTree, row: PodRow) -> dict[str, str | Cell]:
    found = _first(pod_table.table([row], now=tree.now, with_used=tree.with_used))
    return {_OF_PODS.get(header, header): cell for header, cell in found.items() if header != "MODEL"}


def _calm(cell: str | Cell) -> str | Cell:
    return dataclasses.replace(cell, style="") if isinstance(cell, Cell) and cell.style == "good" else cell


def node_key(branch: NodeBranch) -> Key:
    return "node", branch.row.node.name


def gpu_key(gpu: GpuSummary) -> Key:
    return "gpu", gpu.node, gpu.gpu.uuid


def is_in(namespace: str, gpu: GpuSummary) -> bool:
    return any(holder.pod.namespace == namespace for holder in gpu.used.holders)


def _text_of_gpu(gpu: GpuSummary) -> str:
    words = (gpu.name, gpu.gpu.uuid, gpu.gpu.model, gpu.gpu.mode.value, gpu.gpu.pci_bus_id, *gpu.statuses)
    return " ".join(words).lower()


def _known(snapshot: Snapshot, previous: ClusterTree | None) -> dict[str, NodeBranch]:
    before = previous.snapshot if previous is not None else None
    is_same = before is not None and (
        before.usage is snapshot.usage
        and before.node_objects is snapshot.node_objects
        and before.profile is snapshot.profile
    )
    kept = previous.known if previous is not None and is_same else {}
    known = {
        node.name: branch
        for node in snapshot.nodes
        if (branch := kept.get(node.name)) is not None and branch.row.node is node
    }
    fresh = tuple(node for node in snapshot.nodes if node.name not in known)
    rows = node_table.build(dataclasses.replace(snapshot, nodes=fresh))
    return known | {row.node.name: NodeBranch(row) for row in rows}


def _unplaced(snapshot: Snapshot, pods: Sequence[pod.PodJson], namespace: str) -> tuple[PodRow, ...]:
    holders = {
        identity
        for node in snapshot.nodes
        for entry in node.allocations
        if not entry.is_backfill_reservation
        for identity in (entry.pod.uid or str(entry.pod),)
    }
    without = [
        manifest
        for manifest in pods
        if pod.uid(manifest) not in holders and "/".join(pod.namespaced_name(manifest)) not in holders
    ]
    rows = pod_table.build(Snapshot((), without))
    return tuple(row for row in rows if not namespace or row.namespace == namespace)


def _columns(gpus: Sequence[GpuSummary], *, with_used: bool) -> tuple[Column, ...]:
    columns = gpu_table.COLUMNS if with_used else cell_figures.unused(gpu_table.COLUMNS)
    is_plain = all(gpu.isolation in {"", Isolation.ARBITER} and gpu.gpu.isolations == ONLY_ARBITER for gpu in gpus)
    shown = (column for column in columns if not column.wide and not (is_plain and column == cell_figures.ISOLATION))
    return tuple(column._replace(least=_LEAST.get(column.header, column.least)) for column in shown)
