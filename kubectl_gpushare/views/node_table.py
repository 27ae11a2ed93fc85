"""`top nodes`: a line per node."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpushare.gpunode import GpuNode
from gpushare.whatif import unavailable_nodes
from gpushare.whatif.unavailable_nodes import UnavailableNode
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import values
from kubectl_gpushare.output.values import NONE, UNKNOWN, Cell, Column, Document, Listing, Row, Table, plain, sentence
from kubectl_gpushare.source import live_usage
from kubectl_gpushare.source.live_usage import Used
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import as_kubectl, cell_figures, gpu_summary
from kubectl_gpushare.views.gpu_summary import GpuSummary, Sum

COLUMNS = (
    Column("NAME", least=14, middle=True),
    Column("GPUS"),
    Column("MODEL", least=8, leave_out=5),
    Column("MODE", least=10, leave_out=9),
    Column("COMPUTE"),
    Column("MEMORY"),
    *cell_figures.USED_COLUMNS,
    Column("PODS", leave_out=4),
    Column("FREE", leave_out=8),
    Column("LARGEST", leave_out=3),
    Column("FRAG", leave_out=6),
    Column("STATUS", least=8),
    Column("AGE", wide=True),
    Column("CONFIG", wide=True),
    Column("REASON", wide=True, least=20),
)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with its GPUs and their sum."""

    node: GpuNode
    gpus: tuple[GpuSummary, ...]
    total: Sum
    unavailable: UnavailableNode | None = None

    @property
    def measured(self) -> list[Used | None]:
        return [gpu.measured for gpu in self.gpus if gpu.shared]

    @property
    def used(self) -> Used | None:
        """The total use of these GPUs; None if unknown, or if there are none."""
        known = [part for part in self.measured if part is not None]
        return live_usage.total(known) if known else None

    @property
    def statuses(self) -> tuple[str, ...]:
        """Its problems, one word each: of the node, of its conditions, then of its GPUs and its ledger."""
        words = [self.unavailable.word] if self.unavailable else []
        troubles = [condition.trouble for condition in self.node.conditions if condition.trouble]
        words += [word for word in troubles if word not in words]
        if not self.node.gpus:
            words.append("NoGPUs")
        counts = collections.Counter(word for gpu in self.gpus for word in gpu.statuses if word not in words)
        words += [f"{word}:{count}" for word, count in counts.items()]
        if self.node.problems:
            words.append("Unreadable")
        return tuple(words)

    @property
    def reason(self) -> str:
        said = [self.unavailable.sentence] if self.unavailable else []
        said += [condition.message or condition.reason for condition in self.node.conditions if condition.trouble]
        said += gpu_summary.ledger_problems([self.node], self.gpus)
        said += [f"{gpu.name}: {gpu.gpu.health_reason}" for gpu in self.gpus if not gpu.gpu.healthy]
        said += [f"{gpu.name}: {gpu.reason}" for gpu in self.gpus if gpu.holds or gpu.exclusion]
        return next(filter(None, said), "")


SORT_KEYS: Mapping[str, tuple[Callable[[NodeRow], Any], bool]] = {
    "name": (lambda row: gpu_summary.natural(row.node.name), False),
    "gpus": (lambda row: row.total.gpus, True),
    "model": (lambda row: models(row.gpus), False),
    **cell_figures.sort_keys(lambda row: row.total, lambda row: row.used),
}


def build(snapshot: Snapshot, sort_by: str = "") -> list[NodeRow]:
    rows = []
    absent = unavailable_nodes.find(snapshot.nodes, snapshot.node_objects)
    for node in sorted(snapshot.nodes, key=lambda node: gpu_summary.natural(node.name)):
        gpus = gpu_summary.summarize([node], snapshot, absent)
        rows.append(NodeRow(node, tuple(gpus), gpu_summary.add_up(gpus), absent.get(node.name)))
    key, largest_first = SORT_KEYS[sort_by or "name"]
    return sorted(rows, key=key, reverse=largest_first)


def of_node(described: GpuNode, snapshot: Snapshot) -> NodeRow:
    return build(dataclasses.replace(snapshot, nodes=(described,), usage=None))[0]


def table(rows: Sequence[NodeRow], *, with_used: bool = False, now: float = 0.0) -> Table:
    lines = [_row(row, now, with_used=with_used) for row in rows]
    columns = COLUMNS if with_used else cell_figures.unused(COLUMNS)
    return Table(columns, lines, *sums(rows, with_used=with_used), "nodes")


def sums(rows: Sequence[NodeRow], *, with_used: bool) -> tuple[dict[str, str | Cell], str]:
    """Return the cells of the row of totals, and a sentence about what is free."""
    gpus = [gpu for row in rows for gpu in row.gpus]
    total = gpu_summary.add_up(gpus)
    cells = {
        "GPUS": str(total.gpus),
        "MODEL": f"{len(rows)}-{'node' if len(rows) == 1 else 'nodes'}",
        **cell_figures.sum_cells(total, [part for row in rows for part in row.measured] if with_used else None),
    }
    return cells, gpu_summary.free_sentence(gpus, total)


def document(rows: Sequence[NodeRow]) -> Document:
    total = gpu_summary.add_up([gpu for row in rows for gpu in row.gpus])
    items = ({**item(row), **cell_figures.used_document(row.used)} for row in rows)
    return values.list_document("NodeList", items, totals=cell_figures.sum_document(total))


def listing(snapshot: Snapshot, names: Sequence[str], chosen: Options, *, now: float) -> Listing:
    """Return the named nodes, or all; with -n, those that pods of the namespace are on. `now`: for their ages."""
    rows = [
        row
        for row in build(snapshot, chosen.sort_by)
        if (not names or row.node.name in names)
        and (
            not chosen.namespace
            or any(holder.pod.namespace == chosen.namespace for gpu in row.gpus for holder in gpu.used.holders)
        )
    ]
    gpus = [gpu for row in rows for gpu in row.gpus]
    return Listing(
        lambda: table(rows, with_used=snapshot.usage is not None, now=now),
        lambda: document(rows),
        lambda: (f"gpunode.gpushare.io/{row.node.name}" for row in rows),
        lambda: (*gpu_summary.ledger_problems(snapshot.nodes, gpus), *snapshot.notes),
    )


def item(row: NodeRow) -> dict[str, Any]:
    return {
        "name": row.node.name,
        "created": row.node.created,
        "labels": dict(row.node.labels),
        "models": _counts(gpu.gpu.model for gpu in row.gpus if not gpu.gone),
        "modes": _counts(gpu.gpu.mode.value for gpu in row.gpus if not gpu.gone),
        "config": row.node.config,
        "status": list(row.statuses) or ["Ready"],
        "reason": row.reason,
        **cell_figures.sum_document(row.total),
    }


def models(gpus: Iterable[GpuSummary]) -> str:
    return mixed(cell_figures.model(gpu.gpu) for gpu in gpus if not gpu.gone)


def _row(row: NodeRow, now: float, *, with_used: bool) -> Row:
    total = row.total
    allocated = [cell_figures.unknown()] * 2
    if total.total_percent:
        compute = cell_figures.compute(total.request_percent, total.total_percent)
        allocated = [compute, cell_figures.memory(total.memory_bytes, total.total_memory_bytes)]
    return (
        row.node.name,
        str(total.gpus),
        models(row.gpus),
        mixed(gpu.gpu.mode.value for gpu in row.gpus if not gpu.gone),
        *allocated,
        *(cell_figures.used(row.used, total.memory_bytes, len(row.measured)) if with_used else ()),
        str(total.pods),
        cell_figures.free(*total.free),
        cell_figures.largest(total.largest),
        cell_figures.fragmentation(total.free_gpus, total.stranded_gpus),
        cell_figures.status(row.statuses),
        as_kubectl.since(row.node.created, now=now) or UNKNOWN,
        plain(row.node.config),
        sentence(row.reason),
    )


def mixed(words: Iterable[str]) -> str:
    counts = counted(words)
    if len(counts) < 2:
        return counts[0][0] if counts else NONE
    return ",".join(f"{word}:{count}" for word, count in counts)


def _counts(words: Iterable[str]) -> list[dict[str, Any]]:
    return [{"name": word, "gpus": count} for word, count in counted(words)]


def counted(words: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(collections.Counter(words).items(), key=lambda entry: (-entry[1], entry[0]))
