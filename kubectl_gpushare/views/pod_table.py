"""`top pods`: a line per pod that shares GPUs or waits for a share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpushare import contract, ledger, mig_shares, pod, quantity
from gpushare.allocation import Allocation, Isolation, peak
from gpushare.gpunode import GpuNode
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import values
from kubectl_gpushare.output.values import NONE, UNKNOWN, Cell, Column, Document, Listing, Row, Table, sentence
from kubectl_gpushare.source.live_usage import Used
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import as_kubectl, cell_figures, gpu_summary

if TYPE_CHECKING:
    from gpushare import request

COLUMNS = (
    Column("NAMESPACE", least=6),
    Column("NAME", least=14, middle=True),
    Column("GPUS", least=8, middle=True),  # its end is the index
    Column("REQUEST", leave_out=5),
    Column("LIMIT", leave_out=6),
    Column("MEMORY", leave_out=3),
    cell_figures.ISOLATION,
    *cell_figures.USED_COLUMNS,
    Column("STATE", least=len("Reserved:59s")),
    Column("AGE", leave_out=7),
    Column("MODEL", wide=True, leave_out=8),
    Column("CONTAINERS", wide=True, leave_out=9),
    Column("ALLOCATION", wide=True, leave_out=10),
    Column("REASON", wide=True, least=20),
)
UNNAMED = "<not-yet-named>"
_STYLES = {"Running": "good", "Reserved": "warn", as_kubectl.GATED: "warn", "Gone": "bad"}


@dataclasses.dataclass(frozen=True, slots=True)
class PodRow:
    """A pod with its allocation. `manifest` is None if it could not be read, `entry` if the pod holds nothing."""

    namespace: str
    name: str
    manifest: pod.PodJson | None
    entry: Allocation | None
    gpus: tuple[gpu_summary.GpuSummary, ...]  # the pod's GPUs, all on one node
    state: str
    used: Used | None = None
    lent_bytes: int = 0  # beyond `memory_bytes`, on all its GPUs

    @property
    def request_percent(self) -> int:
        return ledger.held_in_all(self.entry)[0] if self.entry else 0

    @property
    def memory_bytes(self) -> int:
        return ledger.held_in_all(self.entry)[1] if self.entry else 0

    @property
    def limits_percent(self) -> list[int]:
        return sorted({share.limit_percent for share in self.entry.shares}) if self.entry else []

    @property
    def created(self) -> str:
        return str(((self.manifest or {}).get("metadata") or {}).get("creationTimestamp") or "")


# Column a list may be sorted by -> (key, largest first).
SORT_KEYS: Mapping[str, tuple[Callable[[PodRow], Any], bool]] = {
    "name": (lambda row: (gpu_summary.natural(row.namespace), gpu_summary.natural(row.name)), False),
    "gpus": (lambda row: len(row.gpus), True),
    "compute": (lambda row: row.request_percent, True),
    "request": (lambda row: row.request_percent, True),
    "limit": (lambda row: row.limits_percent[::-1], True),
    "memory": (lambda row: row.memory_bytes, True),
    "used": (lambda row: cell_figures.by_usage(row.used)[0], True),
    "busy": (lambda row: cell_figures.by_usage(row.used)[1], True),
    "status": (lambda row: row.state, False),
    "age": (lambda row: row.created or "9", False),
}


def build(snapshot: Snapshot, *, sort_by: str = "", chosen: Options | None = None) -> list[PodRow]:
    there = {gpu.gpu.uuid: gpu for gpu in gpu_summary.summarize(snapshot.nodes)}
    holders = _holders(snapshot)
    loans = {share: lent_bytes for node in snapshot.nodes for share, lent_bytes in node.lent().items()}
    rows = []
    for manifest in snapshot.pods or ():
        namespace, name = pod.namespaced_name(manifest)
        entry = holders.pop(pod.uid(manifest), None) or holders.pop(f"{namespace}/{name}", None)
        if entry is not None or (pod.asks_for_share(manifest) and not pod.is_terminal(manifest)):
            lent = _lent(entry, loans) if entry else 0
            rows.append(_made(namespace, name, manifest, entry, there, snapshot, lent))
    if not (chosen and chosen.selector):  # the labels of an unread pod are unknown
        rows += [
            _made(entry.pod.namespace, entry.pod.name or UNNAMED, None, entry, there, snapshot, _lent(entry, loans))
            for entry in holders.values()
            if not chosen or not chosen.namespace or entry.pod.namespace == chosen.namespace
        ]
    key, largest_first = SORT_KEYS[sort_by or "name"]
    by_name = sorted(rows, key=SORT_KEYS["name"][0])
    return sorted(by_name, key=key, reverse=largest_first) if sort_by else by_name


def on_gpu(entry: Allocation, manifest: pod.PodJson | None, gpu: gpu_summary.GpuSummary, snapshot: Snapshot) -> PodRow:
    """Return the row of a pod, with only what it holds of this GPU."""
    uuid = gpu.gpu.uuid
    shares = tuple(dataclasses.replace(share, gpu_uuids=(uuid,)) for share in entry.shares if uuid in share.gpu_uuids)
    part = dataclasses.replace(entry, shares=shares)
    owner = next((node for node in snapshot.nodes if node.name == gpu.node), None)
    lent = _lent(entry, owner.lent(), uuid) if owner is not None and owner.resizes else 0
    return _made(entry.pod.namespace, entry.pod.name or UNNAMED, manifest, part, {uuid: gpu}, snapshot, lent)


def table(rows: Sequence[PodRow], *, now: float, namespaces: bool = True, with_used: bool = False) -> Table:
    whole = Table(COLUMNS, [_row(row, now) for row in rows], _totals(rows), what="pods that share GPUs")
    if all(row.entry is None or row.entry.labels.isolation is Isolation.ARBITER for row in rows):
        whole = cell_figures.without(whole, [cell_figures.ISOLATION])
    if not with_used:
        whole = cell_figures.without(whole, cell_figures.USED_COLUMNS)
    return whole if namespaces else cell_figures.without(whole, COLUMNS[:1])


def document(rows: Sequence[PodRow]) -> Document:
    return values.list_document("PodList", map(item, rows))


def item(row: PodRow) -> dict[str, Any]:
    return {
        "namespace": row.namespace,
        "name": row.name,
        "uid": pod.uid(row.manifest or {}) or (row.entry.pod.uid if row.entry else ""),
        "state": row.state,
        "gpus": [{"name": gpu.name, "uuid": gpu.gpu.uuid} for gpu in row.gpus],
        "allocation": row.entry.id if row.entry else "",
        "isolation": row.entry.labels.isolation.value if row.entry else "",
        "requestPercent": row.request_percent,
        "limitsPercent": row.limits_percent,
        "memoryBytes": row.memory_bytes,
        **({"lentBytes": row.lent_bytes} if row.lent_bytes else {}),
        "reservedUntil": quantity.format_time(until) if (until := _until(row)) is not None else "",
        "asksFor": list(map(str, _demands(row))),
        "created": row.created,
        "reason": _reason(row),
        **cell_figures.used_document(row.used),
    }


def listing(snapshot: Snapshot, names: Sequence[str], chosen: Options, *, now: float) -> Listing:
    rows = [row for row in build(snapshot, sort_by=chosen.sort_by, chosen=chosen) if not names or row.name in names]
    with_used, namespaces = snapshot.usage is not None, not chosen.namespace
    return Listing(
        lambda: table(rows, now=now, namespaces=namespaces, with_used=with_used),
        lambda: document(rows),
        lambda: (f"pod/{row.name}" for row in rows),
        lambda: snapshot.notes,
    )


def _holders(snapshot: Snapshot) -> dict[str, Allocation]:
    """Return every allocation, by the uid of its pod; by the pod's name until it was seen, or by its own id."""
    return {
        entry.pod.uid or (str(entry.pod) if entry.pod.name else entry.id): entry
        for node in snapshot.nodes
        for entry in node.allocations
        if not entry.is_backfill_reservation
    }


def _made(
    namespace: str,
    name: str,
    manifest: pod.PodJson | None,
    entry: Allocation | None,
    there: Mapping[str, gpu_summary.GpuSummary],
    snapshot: Snapshot,
    lent_bytes: int,
) -> PodRow:
    held = tuple(there[uuid] for uuid in entry.gpu_uuids if uuid in there) if entry else ()
    shared = [gpu.gpu.uuid for gpu in held if gpu.shared]
    used = snapshot.usage.of_pod(held[0].node, namespace, name, shared) if snapshot.usage and shared else None
    if manifest is not None:
        state = as_kubectl.pod_state(manifest)
    elif entry is not None and entry.reserved_until is not None:
        state = "Reserved"
    else:
        state = UNKNOWN if snapshot.pods is None else "Gone"
    return PodRow(namespace, name, manifest, entry, held, state, used, lent_bytes)


def _lent(entry: Allocation, loans: Mapping[tuple[str, int], int], uuid: str = "") -> int:
    """Return the bytes that a pod is lent on all its GPUs, or on the GPU `uuid`."""
    return sum(
        loans.get((entry.id, position), 0) * sum(uuid in {"", held} for held in share.gpu_uuids)
        for position, share in enumerate(entry.shares)
    )


def _row(row: PodRow, now: float) -> Row:
    until = _until(row)
    left = "" if until is None else ":" + (as_kubectl.age(until - now) if until > now else "expired")
    containers = [name for share in (row.entry.shares if row.entry else ()) for name in share.containers]
    return (
        row.namespace,
        row.name,
        _places(row.gpus),
        *(_held(row) if row.entry else _request_cells(row)),
        mig_shares.described(row.entry.labels.isolation, row.entry.shares) if row.entry else NONE,
        *(
            cell_figures.used(row.used, row.memory_bytes, sum(gpu.shared for gpu in row.gpus))
            if row.entry
            else (NONE, NONE)
        ),
        Cell(row.state + left, _STYLES.get(row.state, "")),
        as_kubectl.since(row.created, now=now) or UNKNOWN,
        ",".join(dict.fromkeys(cell_figures.model(gpu.gpu) for gpu in row.gpus)) or NONE,
        ",".join(dict.fromkeys(containers)) or NONE,
        row.entry.id if row.entry else NONE,
        sentence(_reason(row)),
    )


def _held(row: PodRow) -> tuple[str, str, str]:
    desired = _desired(row)
    return (
        _change(quantity.format_compute, row.request_percent, desired.request_percent),
        ",".join(map(quantity.format_compute, row.limits_percent)) or NONE,
        _change(quantity.format_bytes, row.memory_bytes, desired.memory_bytes)
        + (f"+{quantity.format_bytes(row.lent_bytes)}" if row.lent_bytes else ""),
    )


def _request_cells(row: PodRow) -> tuple[str | Cell, str | Cell, str | Cell]:
    """Return the request of a pod that holds nothing; memory may be in per cent of an unknown GPU."""
    demands = _demands(row)
    if not demands:
        return NONE, NONE, NONE
    limits = sorted({demand.share.limit_percent for demand in demands})
    whole = peak(demands, lambda demand: (demand.share.memory.bytes or 0) * demand.gpus)
    memory = [quantity.format_bytes(whole)] if whole else []
    parts = [(demand.gpus, demand.share.memory.percent) for demand in demands if demand.share.memory.percent]
    memory += [f"{count}x{percent}%" if count > 1 else f"{percent}%" for count, percent in parts]
    texts = (
        quantity.format_compute(peak(demands, lambda demand: demand.share.request_percent * demand.gpus)),
        ",".join(map(quantity.format_compute, limits)),
        "+".join(memory),
    )
    request, limit, asked = (Cell(text, "dim") for text in texts)
    return request, limit, asked


def _demands(row: PodRow) -> Sequence[request.Demand]:
    if row.entry is not None or row.manifest is None:
        return ()
    from gpushare import errors, request  # imported here because it is slow

    try:
        return request.parse(row.manifest).demands
    except errors.RequestError:
        return ()


def _until(row: PodRow) -> float | None:
    """Return when the pod's reservation expires; None without one, or if the pod exists."""
    return row.entry.reserved_until if row.entry is not None and row.manifest is None else None


def _desired(row: PodRow) -> PodRow:
    """Return the row as if the pod held what it asks for; the row itself if the pod does not wait to be resized."""
    if row.entry is None or row.manifest is None:
        return row
    if not _reason(row) and not any(share.shrink_to_bytes for share in row.entry.shares):
        return row
    from gpushare import errors, request, resizing  # imported here because it is slow and rarely needed

    there = GpuNode("", tuple(gpu.gpu for gpu in row.gpus))
    try:
        shares = resizing.asked(request.parse(row.manifest), row.entry, there)
    except errors.GpushareError:
        return row
    return dataclasses.replace(row, entry=dataclasses.replace(row.entry, shares=shares))


def _change(write: Callable[[int], str], held: int, asked: int) -> str:
    return write(held) if held == asked else f"{write(held)}->{write(asked)}"


def _totals(rows: Sequence[PodRow]) -> dict[str, str | Cell]:
    shared = {gpu.gpu.uuid for row in rows for gpu in row.gpus if gpu.shared}  # each counts once
    holders = [row for row in rows if any(gpu.gpu.uuid in shared for gpu in row.gpus)]
    waiting = sum(row.state == as_kubectl.GATED for row in rows)
    reserved = sum(_until(row) is not None for row in rows)
    counts = [f"{count}-{what}" for count, what in ((waiting, "waiting"), (reserved, "reserved")) if count]
    return {
        "GPUS": f"{len(rows)}-{'pod' if len(rows) == 1 else 'pods'}",
        "REQUEST": quantity.format_compute(sum(row.request_percent for row in rows)),
        "MEMORY": quantity.format_bytes(sum(row.memory_bytes for row in rows)),
        **cell_figures.by_column(*cell_figures.used_in_all([row.used for row in holders], len(shared))),
        "STATE": ",".join(counts),
    }


def _places(held: Sequence[gpu_summary.GpuSummary]) -> str:
    if not held:
        return NONE
    return f"{held[0].node}/" + ",".join(gpu.name.rpartition("/")[2] for gpu in held)


def _reason(row: PodRow) -> str:
    """Return why the pod waits, from its annotation; for a reservation, what happens to it next."""
    if row.manifest is None:
        reserved = "reserved for a pod that does not exist yet; released if it is not created"
        return "" if _until(row) is None else reserved
    return str(pod.annotations_of(row.manifest).get(contract.REASON, ""))
