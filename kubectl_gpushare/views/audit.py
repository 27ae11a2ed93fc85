"""`audit`: tables of limits that are not in force and of all shares, the document, and a summary in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpushare import quantity
from gpushare.quantity import counted
from kubectl_gpushare.output import values
from kubectl_gpushare.output.values import NONE, UNKNOWN, Cell, Column, Document, Listing, Row, Table, plain, sentence
from kubectl_gpushare.planning.auditing import (
    FOREIGN,
    MEMORY_LIMITED,
    UNLIMITED,
    Amounts,
    AuditState,
    AuditVerdict,
    ShareVerdict,
    Stray,
)

_GPU, _POD = Column("GPU", least=8, middle=True), Column("POD", least=10, middle=True)
_CONTAINERS, _REASON = Column("CONTAINERS", least=8, leave_out=4), Column("REASON", least=20, wrap=True, leave_out=1)


def listing(verdict: AuditVerdict, names: Mapping[str, str], notes: Sequence[str]) -> Listing:
    return Listing(
        lambda: problems_table(verdict, names), lambda: document(verdict, names, notes), lambda: _names(verdict, names)
    )


PROBLEM_COLUMNS = (
    _GPU,
    Column("PROBLEM"),
    _POD,
    _CONTAINERS,
    Column("PID", leave_out=2),
    Column("PROCESS", least=8, leave_out=3),
    Column("USED", leave_out=5),
    _REASON,
)


def problems_table(verdict: AuditVerdict, names: Mapping[str, str]) -> Table:
    rows: list[Row] = [
        (node.name, Cell(str(node.state), "bad"), *[NONE] * 5, sentence(node.reason))
        for node in verdict.nodes
        if node.state is AuditState.BROKEN
    ]
    rows += [
        (
            names.get(share.gpu, share.gpu),
            Cell(str(share.state), "bad"),
            _pod(share.namespace, share.pod),
            ",".join(share.containers) or NONE,
            NONE,
            NONE,
            _used(share),
            sentence(share.reason),
        )
        for share in verdict.shares
        if share.state is AuditState.BROKEN and not share.evaded  # its process has a row
    ]
    return Table(PROBLEM_COLUMNS, [*rows, *(_stray(stray, names) for stray in verdict.strays)])


def _names(verdict: AuditVerdict, names: Mapping[str, str]) -> Iterator[str]:
    """Yield each once: pods, GPUs with processes of no pod, nodes with nothing more specific."""
    subjects = [("", f"gpunode.gpushare.io/{node.name}") for node in verdict.nodes if node.state is AuditState.BROKEN]
    subjects += [(share.namespace, f"pod/{share.pod}") for share in verdict.shares if share.state is AuditState.BROKEN]
    for process in (stray.process for stray in verdict.strays):
        gpu = f"gpu.gpushare.io/{names.get(process.gpu, process.gpu)}"
        subjects.append((process.namespace, f"pod/{process.pod}") if process.pod else ("", gpu))
    return (name for _, name in dict.fromkeys(subjects))


# A foreign process belongs to no share. The driver keeps the memory of a memory-limited one, but not its compute.
_PROBLEMS = {UNLIMITED: "Unlimited", FOREIGN: "Foreign", MEMORY_LIMITED: "MemoryOnly"}


def _stray(stray: Stray, names: Mapping[str, str]) -> Row:
    process = stray.process
    return (
        names.get(process.gpu, process.gpu),
        Cell(_PROBLEMS[process.state], "bad"),
        _pod(process.namespace, process.pod),
        process.container or NONE,
        str(process.pid),
        plain(process.name),
        UNKNOWN if process.used_bytes is None else quantity.format_bytes(process.used_bytes),
        sentence(process.reason),
    )


SHARE_COLUMNS = (
    _POD,
    _CONTAINERS,
    _GPU,
    Column("LEDGER", leave_out=2),
    Column("ENFORCED", leave_out=3),
    Column("USED", leave_out=6),
    Column("PROCESSES", leave_out=5),
    Column("LIBRARY", leave_out=7),
    Column("MEMORY BY", leave_out=8),
    Column("LIMITS"),
    _REASON,
)

_STYLES = {AuditState.IN_FORCE: "good", AuditState.IDLE: "dim", AuditState.BROKEN: "bad"}


def shares_table(verdict: AuditVerdict, names: Mapping[str, str]) -> Table:
    return Table(SHARE_COLUMNS, [_share(share, names) for share in verdict.shares], what="shares")


def _share(share: ShareVerdict, names: Mapping[str, str]) -> Row:
    seen = share.seen
    enforced = seen.enforced if seen else None
    return (
        _pod(share.namespace, share.pod),
        ",".join(share.containers) or NONE,
        names.get(share.gpu, share.gpu),
        _amounts(share.granted),
        Cell(_amounts(enforced), "" if enforced == share.granted else "warn") if enforced else NONE,
        _used(share),
        str(seen.processes) if seen else NONE,
        f"{seen.with_library}/{seen.processes}" if seen and seen.processes else NONE,
        (seen.memory_enforcement if seen else "") or NONE,
        Cell(str(share.state), _STYLES.get(share.state, "warn")),
        sentence(share.reason),
    )


def _amounts(amounts: Amounts) -> str:
    request, limit = map(quantity.format_compute, (amounts.request_percent, amounts.limit_percent))
    return f"{request}..{limit}+{quantity.format_bytes(amounts.memory_bytes)}"


def _pod(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if name else NONE


def _used(share: ShareVerdict) -> str:
    return quantity.format_bytes(share.seen.charged_bytes + share.seen.overhead_bytes) if share.seen else NONE


def document(verdict: AuditVerdict, names: Mapping[str, str], said: Sequence[str]) -> Document:
    return values.list_document(
        "AuditList",
        [_share_document(share, names) for share in verdict.shares],
        processes=[_process_document(stray, names) for stray in verdict.strays],
        nodes=[
            {"name": node.name, "limits": str(node.state), "reason": node.reason, "checkedAt": node.checked_at}
            for node in verdict.nodes
        ],
        summary={
            "inForce": None if verdict.uncertain and not verdict.broken else not verdict.broken,
            "limited": verdict.containers(AuditState.IN_FORCE),
            "notLimited": verdict.containers(AuditState.BROKEN),
            "idle": verdict.containers(AuditState.IDLE),
            "sentence": summary(verdict),
        },
        notes=list(said),
    )


def _share_document(share: ShareVerdict, names: Mapping[str, str]) -> dict[str, Any]:
    seen = share.seen
    return {
        "node": share.node,
        "gpu": {"name": names.get(share.gpu, ""), "uuid": share.gpu},
        "pod": {"namespace": share.namespace, "name": share.pod},
        "containers": list(share.containers),
        "limits": str(share.state),
        "reason": share.reason,
        "isolation": share.isolation,
        "ledger": _amounts_document(share.granted),
        "enforced": _amounts_document(seen.enforced if seen else None),
        "chargedBytes": seen.charged_bytes if seen else None,
        "overheadBytes": seen.overhead_bytes if seen else None,
        "processes": seen.processes if seen else None,
        "withLibrary": seen.with_library if seen else None,
        "memoryEnforcement": (seen.memory_enforcement or None) if seen else None,
        "driverBytes": seen.driver_bytes if seen else None,
    }


def _amounts_document(amounts: Amounts | None) -> dict[str, int | None]:
    return {
        "requestPercent": amounts.request_percent if amounts else None,
        "limitPercent": amounts.limit_percent if amounts else None,
        "memoryBytes": amounts.memory_bytes if amounts else None,
    }


def _process_document(stray: Stray, names: Mapping[str, str]) -> dict[str, Any]:
    process = stray.process
    return {
        "node": stray.node,
        "gpu": {"name": names.get(process.gpu, ""), "uuid": process.gpu},
        "pid": process.pid,
        "name": process.name,
        "pod": {"namespace": process.namespace, "name": process.pod},
        "container": process.container,
        "usedBytes": process.used_bytes,
        "chargedBytes": process.charged_bytes,
        "state": process.state,
        "reason": process.reason,
    }


def summary(verdict: AuditVerdict) -> str:
    limited, parts = verdict.containers(AuditState.IN_FORCE), []
    if proven := sum(node.checked_at is not None for node in verdict.nodes):
        there = limited + verdict.containers(AuditState.BROKEN)
        parts.append(f"{limited} of {counted(there, 'container')} limited on {counted(proven, 'node')}")
    if idle := verdict.containers(AuditState.IDLE):
        parts.append(f"{counted(idle, 'container')} with nothing on a GPU")
    if containers := verdict.containers(AuditState.CONDITION):
        nodes = sum(node.state is AuditState.CONDITION for node in verdict.nodes)
        parts.append(f"{counted(containers, 'container')} on {counted(nodes, 'node')} by the GPUNode's condition alone")
    unlimited = sum(stray.process.state == UNLIMITED for stray in verdict.strays)
    if unlimited:
        parts.append(f"{counted(unlimited, 'process', 'processes')} of shares without a limit")
    memory_alone = sum(stray.process.state == MEMORY_LIMITED for stray in verdict.strays)
    if memory_alone:
        parts.append(f"{counted(memory_alone, 'process', 'processes')} of shares without a compute limit")
    if foreign := len(verdict.strays) - unlimited - memory_alone:
        parts.append(f"{counted(foreign, 'process', 'processes')} of no share")
    if broken := sum(node.state is AuditState.BROKEN for node in verdict.nodes):
        parts.append(f"something is not in force on {counted(broken, 'node')}")
    if unknown := sum(node.state is AuditState.UNKNOWN for node in verdict.nodes):
        parts.append(f"not certain of {counted(unknown, 'node')}")
    return "; ".join(parts) or "no node has GPUs that are shared by annotation"


def notes(verdict: AuditVerdict) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for node in verdict.nodes:
        if node.state is AuditState.UNKNOWN:
            by_reason.setdefault(node.reason, []).append(node.name)
    sentences = [f"not certain of {_named(names)}: {reason}" for reason, names in by_reason.items()]
    sentences += [
        f"{node.name}: {node.reason}" for node in verdict.nodes if node.state is AuditState.IN_FORCE and node.reason
    ]
    named = [node.name for node in verdict.nodes if node.checked_at is None and node.state is not AuditState.UNKNOWN]
    if named:
        sentences.append(f"of {_named(named)} only the condition of the GPUNode is known, which names no container")
    return sentences


def _named(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
