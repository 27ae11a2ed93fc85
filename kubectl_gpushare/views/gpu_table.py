"""`top gpus`: a line per GPU."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpushare.allocation import ONLY_ARBITER, Isolation
from gpushare.gpunode import CordonNote, Mode
from gpushare.whatif import unavailable_nodes
from kubectl_gpushare.options import Options
from kubectl_gpushare.output.values import NONE, Cell, Column, Document, Listing, Row, Table, list_document, sentence
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import cell_figures, gpu_summary
from kubectl_gpushare.views.gpu_summary import GpuSummary

COLUMNS = (
    Column("NAME", least=14, middle=True),
    Column("MODEL", least=8, leave_out=5),
    Column("MODE", leave_out=9),
    cell_figures.ISOLATION,
    Column("COMPUTE"),
    Column("MEMORY"),
    *cell_figures.USED_COLUMNS,
    Column("PODS", leave_out=4),
    Column("FREE", leave_out=8),
    Column("LARGEST", leave_out=3),
    Column("FRAG", leave_out=6),
    Column("STATUS", least=8),
    Column("MIG", wide=True, leave_out=13),
    Column("UUID", wide=True, least=12),
    Column("PCI", wide=True, leave_out=12),
    Column("NUMA", wide=True, leave_out=11),
    Column("CC", wide=True, leave_out=10),
    Column("REASON", wide=True, least=20),
)

_MAX_SICK = 5  # GPUs whose reason is printed below the table
# Column a list may be sorted by -> (key, largest first).
SORT_KEYS: Mapping[str, tuple[Callable[[GpuSummary], Any], bool]] = {
    "name": (lambda gpu: (gpu_summary.natural(gpu.node), gpu.gpu.index), False),
    "model": (lambda gpu: gpu.gpu.model, False),
    "mode": (lambda gpu: gpu.gpu.mode.value, False),
    **cell_figures.sort_keys(lambda gpu: gpu_summary.add_up([gpu]), lambda gpu: gpu.measured),
}


def build(snapshot: Snapshot, sort_by: str = "") -> list[GpuSummary]:
    key, largest_first = SORT_KEYS[sort_by or "name"]
    absent = unavailable_nodes.find(snapshot.nodes, snapshot.node_objects)
    gpus = gpu_summary.summarize(snapshot.nodes, snapshot, absent)
    return sorted(gpus, key=key, reverse=largest_first) if sort_by else gpus


def table(gpus: Sequence[GpuSummary], *, with_used: bool = False) -> Table:
    total = gpu_summary.add_up(gpus)
    rows = [_row(gpu, with_used=with_used) for gpu in gpus]
    used = [gpu.measured for gpu in gpus if gpu.shared] if with_used else None
    count = f"{total.gpus}-{'GPU' if total.gpus == 1 else 'GPUs'}"
    totals = {"MODEL": count, **cell_figures.sum_cells(total, used)}
    columns = COLUMNS if with_used else cell_figures.unused(COLUMNS)
    whole = Table(columns, rows, totals, gpu_summary.free_sentence(gpus, total), "GPUs")
    is_plain = all(gpu.isolation in {"", Isolation.ARBITER} and gpu.gpu.isolations == ONLY_ARBITER for gpu in gpus)
    return cell_figures.without(whole, [cell_figures.ISOLATION]) if is_plain else whole


def document(gpus: Sequence[GpuSummary]) -> Document:
    items = ({**item(gpu), **cell_figures.used_document(gpu.measured)} for gpu in gpus)
    return list_document("GPUList", items, totals=cell_figures.sum_document(gpu_summary.add_up(gpus)))


def listing(snapshot: Snapshot, names: Sequence[str], chosen: Options, *, now: float) -> Listing:  # noqa: ARG001
    gpus = [
        gpu
        for gpu in build(snapshot, chosen.sort_by)
        if (not names or gpu.node in names or gpu.name in names)
        and (not chosen.namespace or any(holder.pod.namespace == chosen.namespace for holder in gpu.used.holders))
    ]

    def problems() -> Sequence[str]:
        unhealthy = [gpu for gpu in gpus if not gpu.gpu.healthy and not gpu.gone]
        sick = [f"{gpu.name} is unhealthy: {gpu.reason}" for gpu in unhealthy if gpu.reason]
        more = [f"{len(sick) - _MAX_SICK} more GPUs are unhealthy"] if len(sick) > _MAX_SICK else []
        return (*gpu_summary.ledger_problems(snapshot.nodes, gpus), *sick[:_MAX_SICK], *more, *snapshot.notes)

    return Listing(
        lambda: table(gpus, with_used=snapshot.usage is not None),
        lambda: document(gpus),
        lambda: (f"gpu.gpushare.io/{gpu.name}" for gpu in gpus),
        problems,
    )


def item(summary: GpuSummary) -> dict[str, Any]:
    percent, memory_bytes = summary.free
    free, stranded = summary.parts
    gpu, used = summary.gpu, summary.used
    return {
        "name": summary.name,
        "node": summary.node,
        "index": None if summary.gone else gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "mode": gpu.mode.value,
        "migDevices": list(gpu.mig_profiles),
        "isolations": list(map(str, gpu.isolations)) if summary.shared else [],
        "isolation": summary.isolation,
        "memoryEnforcement": gpu.memory_enforcement.value,
        "status": list(summary.statuses) or ["Ready"],
        "reason": summary.reason,
        "healthy": gpu.healthy,
        "cordoned": gpu.cordoned,
        "cordon": dataclasses.asdict(summary.note) if summary.note != CordonNote() else None,
        "compute": cell_figures.compute_document(used.request_percent, 100 if summary.shared else 0, percent),
        "memory": cell_figures.memory_document(used.memory_bytes, gpu.memory_bytes, memory_bytes),
        **({"lentBytes": used.lent_bytes} if used.lent_bytes else {}),
        "pods": _pods(summary),
        "heldFor": [str(hold.pod) for hold in summary.holds],
        "freeGpus": round(free, 4),
        "strandedGpus": round(stranded, 4),
        "fragmentationRatio": round(stranded / free if free > 0 else 0.0, 4),
        "pciBusID": gpu.pci_bus_id,
        "numaNode": gpu.numa_node,
        "computeCapability": cell_figures.capability(gpu),
    }


def _row(summary: GpuSummary, *, with_used: bool) -> Row:
    gpu, used = summary.gpu, summary.used
    free, stranded = summary.parts
    # For GPUs in other modes only the kubelet knows the holders.
    known = summary.shared or used.holders
    return (
        summary.name,
        cell_figures.model(gpu),
        NONE if summary.gone else gpu.mode.value if gpu.mode is Mode.FRACTIONAL else Cell(gpu.mode.value, "dim"),
        (summary.isolation or ",".join(gpu.isolations) or NONE) if summary.shared else NONE,
        cell_figures.compute(used.request_percent, 0 if summary.gone else 100) if known else cell_figures.unknown(),
        cell_figures.memory(used.memory_bytes, gpu.memory_bytes) if known else cell_figures.unknown(),
        *(cell_figures.used(summary.measured, used.memory_bytes, 1) if with_used else ()),
        str(_pods(summary)) if known or summary.devices is not None else cell_figures.unknown(),
        cell_figures.free(*summary.free),
        cell_figures.largest(summary),
        cell_figures.fragmentation(free, stranded),
        cell_figures.status(summary.statuses),
        ",".join(f"{count}x{name}" for name, count in collections.Counter(gpu.mig_profiles).items()) or NONE,
        gpu.uuid,
        gpu.pci_bus_id or NONE,
        NONE if gpu.numa_node is None else str(gpu.numa_node),
        cell_figures.capability(gpu) or NONE,
        sentence(summary.reason),
    )


def _pods(gpu: GpuSummary) -> int:
    return len(gpu.holders) or len({(given.namespace, given.pod) for given in gpu.devices or ()})
