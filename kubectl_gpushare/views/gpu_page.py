"""`describe node` and `describe gpu`: the shares of each GPU, and their problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpushare import codec, isolation, mig_shares, quantity
from gpushare.allocation import Isolation
from gpushare.gpunode import Condition, GpuNode, MemoryEnforcement
from kubectl_gpushare.output import values
from kubectl_gpushare.output.values import (
    NONE,
    UNKNOWN,
    Block,
    Cell,
    Column,
    Page,
    Section,
    Table,
    field,
    section,
    sentence,
)
from kubectl_gpushare.source.live_usage import GivenDevices
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import as_kubectl, cell_figures, gpu_summary, gpu_table, node_table, tenants
from kubectl_gpushare.views.gpu_summary import GpuSummary

_CONDITION_COLUMNS = (
    Column("Type"),
    Column("Status"),
    Column("Since"),
    Column("Reason", least=8, wrap=True),
    Column("Message", least=20, wrap=True),
)


_MEMORY = {
    MemoryEnforcement.LIBRARY: "refused by the library in each process",
    MemoryEnforcement.DRIVER: "refused by the driver, and by the library in each process",
}
_DEVICES = (Column("Pod", least=14, wrap=True), Column("Container", least=10, wrap=True), Column("Devices"))


def node(described: GpuNode, snapshot: Snapshot, *, now: float) -> Page:
    row = node_table.of_node(described, snapshot)
    order = tenants.letters(row.gpus)
    shares = tenants.table(row.gpus, order, tenants.Pods.from_snapshot(snapshot), now=now)
    models = node_table.counted(gpu.gpu.model for gpu in row.gpus if not gpu.gone)
    blocks: list[Block] = []
    loans = described.lent()
    for gpu in row.gpus:
        blocks += [gpu_line(gpu), *(tenants.pictures(gpu, order, loans) if gpu.shared or gpu.used.holders else ())]
    return (
        *field("Name", described.name),
        *section("Problems", gpu_summary.ledger_problems([described], row.gpus), "bad"),
        *field("Status", ", ".join(row.statuses) or "Ready", style=cell_figures.status(row.statuses).style),
        *field("Reason", row.unavailable.sentence if row.unavailable else "", style="warn"),
        *field("Age", as_kubectl.since(described.created, now=now)),
        *field("Config", described.config or NONE),
        *field("Models", ", ".join(f"{count} × {model}" for model, count in models) or "none reported by the agent"),
        *field("Allocated", _allocated(row.total)),
        *field("Free", gpu_summary.free_sentence(row.gpus, row.total).removeprefix("free ").replace("is free ", "")),
        *_conditions(described.conditions, now=now),
        Section("GPUs", tuple(blocks) or (NONE,)),
        Section("Shares", (shares,) if shares.rows else (NONE,)),
        *as_kubectl.events_section(snapshot.events, now=now),
        *section("Not Shown", snapshot.notes, "warn"),
    )


def gpu(gpu: GpuSummary, owner: GpuNode, snapshot: Snapshot, *, now: float) -> Page:
    order = tenants.letters([gpu])
    shares = tenants.table([gpu], order, tenants.Pods.from_snapshot(snapshot), now=now)
    total = gpu_summary.add_up([gpu])
    device = gpu.gpu
    by_kubelet = f"in mode {device.mode} the kubelet hands it out: `kubectl describe node {gpu.node}` has the counts"
    labels = sorted({holder.labels.exclusion for holder in gpu.used.holders if holder.labels.exclusion})
    return (
        *field("Name", gpu.name),
        *section("Problems", gpu_summary.ledger_problems_of(owner, gpu), "bad"),
        *field("Status", ", ".join(gpu.statuses) or "Ready", style=cell_figures.status(gpu.statuses).style),
        *field("Reason", gpu.reason, style="warn" if device.healthy else "bad"),
        *field("Cordoned", str(gpu.note)),
        *field("Held For", *sorted(str(hold.pod) for hold in gpu.holds)),
        *field("UUID", device.uuid),
        *field("Model", device.model),
        *field("Memory", quantity.format_bytes(device.memory_bytes)),
        *field("Mode", device.mode.value),
        *field("Isolations", _isolations(gpu)),
        *field("Memory Limits", _MEMORY[device.memory_enforcement] if gpu.shared else ""),
        *field("MIG Devices", ", ".join(device.mig_profiles)),
        *field("MIG Room", _mig_room(gpu)),
        *field("Compute Capability", cell_figures.capability(device)),
        *field("PCI", device.pci_bus_id),
        *field("NUMA Node", "" if device.numa_node is None else str(device.numa_node)),
        *field("Node", gpu.node),
        *field("Config", owner.config),
        *field("Allocated", _allocated(total) or ("" if gpu.gone else by_kubelet)),
        *field("Lent", *_lent(gpu, owner)),
        *field("Free", _free(gpu)),
        *field("Exclusive To", *(f"pods with the exclusion label {label}" for label in labels)),
        Section(
            "Tenants", (*tenants.pictures(gpu, order, owner.lent()), shares) if shares.rows else _devices(gpu, snapshot)
        ),
        *as_kubectl.events_section(as_kubectl.events_of_gpu(snapshot.events, device, gpu.name), now=now),
        *section("Not Shown", snapshot.notes, "warn"),
    )


def node_document(described: GpuNode, snapshot: Snapshot) -> values.Document:
    row = node_table.of_node(described, snapshot)
    index = tenants.Pods.from_snapshot(snapshot)
    return {
        **node_table.item(row),
        "problems": gpu_summary.ledger_problems([described], row.gpus),
        "conditions": codec.to_status(described)["conditions"],
        "cards": [{**gpu_table.item(gpu), "tenants": tenants.items(gpu, index)} for gpu in row.gpus],
        "events": as_kubectl.event_items(snapshot.events),
        "notes": list(snapshot.notes),
    }


def gpu_document(gpu: GpuSummary, owner: GpuNode, snapshot: Snapshot) -> values.Document:
    return {
        **gpu_table.item(gpu),
        "problems": gpu_summary.ledger_problems_of(owner, gpu),
        "tenants": tenants.items(gpu, tenants.Pods.from_snapshot(snapshot)),
        "devices": [dataclasses.asdict(given) for given in _given(gpu, snapshot) or ()],
        "events": as_kubectl.event_items(as_kubectl.events_of_gpu(snapshot.events, gpu.gpu, gpu.name)),
        "notes": list(snapshot.notes),
    }


def gpu_line(gpu: GpuSummary) -> str:
    states = ", ".join(gpu.statuses) or "Ready"
    if gpu.gone:
        return f"{gpu.gpu.uuid}: Gone: {gpu.gpu.health_reason}"
    mode = "" if gpu.shared else f", mode {gpu.gpu.mode}"
    reason = f": {gpu.gpu.health_reason}" if not gpu.gpu.healthy and gpu.gpu.health_reason else ""
    return f"{gpu.gpu.index}: {gpu.gpu.model}, {gpu.gpu.uuid}{mode}, {states}{reason}"


def _given(gpu: GpuSummary, snapshot: Snapshot) -> Sequence[GivenDevices] | None:
    return snapshot.usage.devices_of(gpu.node, gpu.gpu.uuid) if snapshot.usage else None


def _devices(gpu: GpuSummary, snapshot: Snapshot) -> tuple[Block, ...]:
    given = _given(gpu, snapshot)
    if given is None and not gpu.shared and not gpu.gone:
        return (UNKNOWN,)
    rows = [(f"{one.namespace}/{one.pod}", one.container, f"{one.count} {one.resource}") for one in given or ()]
    return (Table(_DEVICES, rows),) if rows else (NONE,)


def _conditions(conditions: Sequence[Condition], *, now: float) -> tuple[Section, ...]:
    if not conditions:
        return ()
    rows = [
        (
            condition.type,
            Cell(
                condition.status,
                "warn" if condition.trouble == f"{condition.type}Unknown" else "bad" if condition.trouble else "good",
            ),
            as_kubectl.since(condition.last_transition, now=now) or NONE,
            condition.reason or NONE,
            sentence(condition.message),
        )
        for condition in conditions
    ]
    return (Section("Conditions", (Table(_CONDITION_COLUMNS, rows),)),)


def _allocated(total: gpu_summary.Sum) -> str:
    if not total.total_percent:
        return ""
    compute = f"{quantity.format_compute(total.request_percent)} of {total.total_percent // 100} GPU"
    plural = "s" if total.total_percent > 100 else ""
    memory = f"{quantity.format_bytes(total.memory_bytes)} of {quantity.format_bytes(total.total_memory_bytes)}"
    return f"{compute}{plural} and {memory} of memory, to {total.pods} pod{'' if total.pods == 1 else 's'}"


def _lent(gpu: GpuSummary, owner: GpuNode) -> list[str]:
    loans = owner.lent()
    lent = ((holder.pod, tenants.lent_to(holder, gpu.gpu.uuid, loans)) for holder in gpu.used.holders)
    return [f"{quantity.format_bytes(size)} to {name}, beyond its memory" for name, size in lent if size]


def _isolations(gpu: GpuSummary) -> str:
    """Return the kinds that the GPU offers, and the one that its current shares restrict it to."""
    if not gpu.shared:
        return ""
    offered = isolation.offers(gpu.gpu.isolations, gpu.gpu.sm_partitions)
    kinds = offered or "none: it supports no isolation that its configuration allows"
    return f"{kinds}; now only {gpu.isolation}, as its shares have" if gpu.isolation not in {"", kinds} else kinds


def _mig_room(gpu: GpuSummary) -> str:
    """Return the profiles that one more share with the isolation mig could get; empty if none may come."""
    if not gpu.shared or Isolation.MIG not in gpu.gpu.isolations or gpu.isolation not in {"", Isolation.MIG}:
        return ""
    return " or ".join(mig_shares.room(gpu.gpu, mig_shares.instances(gpu.used.holders, gpu.gpu.uuid))) or "nothing"


def _free(gpu: GpuSummary) -> str:
    if not gpu.shared:
        return ""
    percent, memory_bytes = gpu.free
    if not memory_bytes and not percent:
        return "nothing"
    free, lost = gpu.parts
    part = f"; {lost / free:.0%} of it is stranded" if lost else ""
    return f"{quantity.format_compute(percent)} of its compute and {quantity.format_bytes(memory_bytes)}{part}"
