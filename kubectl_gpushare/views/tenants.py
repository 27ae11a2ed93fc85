"""Tenants: the allocations on some GPUs, each with a letter that pictures and tables share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpushare import ledger, pod, quantity
from gpushare.allocation import Allocation, GivenShare
from kubectl_gpushare.output.values import NONE, UNKNOWN, Cell, Column, Picture, Row, Table, letter
from kubectl_gpushare.source.live_usage import Usage, Used
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import as_kubectl, cell_figures
from kubectl_gpushare.views.gpu_summary import GpuSummary

_USED = (Column("Used"), Column("Busy"))
COLUMNS = (
    Column(""),
    Column("Pod", least=14, wrap=True),
    Column("GPU", least=6, wrap=True),
    Column("Containers", least=10, wrap=True),
    Column("Request"),
    Column("Limit"),
    Column("Memory"),
    *_USED,
    Column("State", least=8, wrap=True),
    Column("Since"),
)

_STYLES = {"Running": "good", "Gone": "bad"}


@dataclasses.dataclass(frozen=True, slots=True)
class Pods:
    """An index of the pods by uid and by name."""

    by_uid: Mapping[str, pod.PodJson]
    by_name: Mapping[tuple[str, str], pod.PodJson]
    known: bool  # false if pods could not be read
    usage: Usage | None = None  # None if agents were not asked

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> Pods:
        listed = snapshot.pods or ()
        return cls(
            {pod.uid(manifest): manifest for manifest in listed if pod.uid(manifest)},
            {pod.namespaced_name(manifest): manifest for manifest in listed},
            snapshot.pods is not None,
            snapshot.usage,
        )

    def holder(self, entry: Allocation) -> pod.PodJson | None:
        if entry.pod.uid:
            return self.by_uid.get(entry.pod.uid)
        return self.by_name.get((entry.pod.namespace, entry.pod.name))


def letters(gpus: Iterable[GpuSummary]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for gpu in gpus:
        for holder in gpu.used.holders:
            positions.setdefault(holder.id, len(positions))
    return positions


def pictures(
    gpu: GpuSummary, order: Mapping[str, int], loans: Mapping[tuple[str, int], int]
) -> tuple[Picture, Picture]:
    """Return what the tenants hold of the GPU; of memory also what they are lent (`loans`: `GpuNode.lent`)."""
    compute, memory = [], []
    for holder in gpu.used.holders:
        percent, memory_bytes = ledger.held(holder, gpu.gpu.uuid)
        compute.append((order[holder.id], percent))
        memory.append((order[holder.id], memory_bytes + lent_to(holder, gpu.gpu.uuid, loans)))

    def picture(
        label: str, parts: list[tuple[int, int]], used: int, total: int, write: Callable[[int], str]
    ) -> Picture:
        return Picture(label, tuple(parts), total, f"{write(used)} of {write(total)}", used > total)

    total = 0 if gpu.gone else 100
    drawn = picture("memory", memory, gpu.used.memory_bytes, gpu.gpu.memory_bytes, quantity.format_bytes)
    if lent_bytes := gpu.used.lent_bytes:
        drawn = drawn._replace(caption=f"{drawn.caption}, {quantity.format_bytes(lent_bytes)} of it lent")
    return picture("compute", compute, gpu.used.request_percent, total, quantity.format_compute), drawn


def lent_to(holder: Allocation, uuid: str, loans: Mapping[tuple[str, int], int]) -> int:
    """Return the bytes that a pod is lent on the GPU beyond its own."""
    if not loans:
        return 0
    return sum(loans.get((holder.id, at), 0) for at, share in enumerate(holder.shares) if uuid in share.gpu_uuids)


def table(gpus: Sequence[GpuSummary], order: Mapping[str, int], pods: Pods, *, now: float) -> Table:
    names = {gpu.gpu.uuid: str(gpu.gpu.index) if not gpu.gone else gpu.gpu.uuid for gpu in gpus}
    holders = {holder.id: holder for gpu in gpus for holder in gpu.used.holders}
    rows = [
        _row(holder, share, names, order[holder.id], pods, gpus[0].node, now)
        for holder in holders.values()
        for share in holder.shares
        if any(uuid in names for uuid in share.gpu_uuids)
    ]
    whole = Table(COLUMNS, rows)
    return whole if pods.usage else cell_figures.without(whole, _USED)


def items(gpu: GpuSummary, pods: Pods) -> list[dict[str, Any]]:
    return [
        {
            "allocation": holder.id,
            "hold": holder.is_backfill_reservation,
            "pod": {"namespace": holder.pod.namespace, "name": holder.pod.name, "uid": holder.pod.uid},
            "containers": list(share.containers),
            "requestPercent": share.request_percent,
            "limitPercent": share.limit_percent,
            "memoryBytes": share.memory_bytes,
            "isolation": holder.labels.isolation.value,
            "state": _state(holder, pods)[0],
            "since": _since(holder, pods),
            **cell_figures.used_document(_used(holder, [gpu.gpu.uuid], pods, gpu.node)),
        }
        for holder in gpu.used.holders
        for share in holder.shares
        if gpu.gpu.uuid in share.gpu_uuids
    ]


def _row(
    holder: Allocation, share: GivenShare, names: Mapping[str, str], position: int, pods: Pods, node: str, now: float
) -> Row:
    uuids = [uuid for uuid in share.gpu_uuids if uuid in names]
    state, style = _state(holder, pods)
    if holder.reserved_until is not None:
        left = holder.reserved_until - now
        state += f" (expires in {as_kubectl.age(left)})" if left > 0 else " (expired)"
    return (
        letter(position),
        f"held for {holder.pod}" if holder.is_backfill_reservation else str(holder.pod),
        ",".join(names[uuid] for uuid in uuids),
        (",".join(share.containers) or NONE) + (" (init)" if share.ends_early else ""),
        quantity.format_compute(share.request_percent),
        quantity.format_compute(share.limit_percent),
        quantity.format_bytes(share.memory_bytes),
        *cell_figures.used(_used(holder, uuids, pods, node), share.memory_bytes * len(uuids), len(uuids)),
        Cell(state, style),
        as_kubectl.since(_since(holder, pods), now=now) or UNKNOWN,
    )


def _used(holder: Allocation, uuids: Sequence[str], pods: Pods, node: str) -> Used | None:
    return pods.usage.of_pod(node, holder.pod.namespace, holder.pod.name, uuids) if pods.usage else None


def _state(holder: Allocation, pods: Pods) -> tuple[str, str]:
    if holder.is_backfill_reservation:
        return "Held", "warn"
    if holder.reserved_until is not None:
        return "Reserved", "warn"
    manifest = pods.holder(holder)
    if manifest is None:
        return ("Gone", "warn") if pods.known else (UNKNOWN, "dim")
    state = as_kubectl.pod_state(manifest)
    return state, _STYLES.get(state, "")


def _since(holder: Allocation, pods: Pods) -> str:
    manifest = pods.holder(holder)
    return as_kubectl.pod_started(manifest) if manifest else ""
