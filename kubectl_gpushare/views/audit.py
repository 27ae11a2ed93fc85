"""`audit`: what is not held to a limit, a line each, or the proof of every container; and a sentence that sums up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare import quantity
from kubectl_gpushare.output import documents
from kubectl_gpushare.output.table import NONE, UNKNOWN, Cell, Column, Row, Table, plain, sentence
from kubectl_gpushare.planning.auditing import Held, Judged, State, Stray, Verdict
from kubectl_gpushare.source.audits import UNLIMITED, Amounts

_GPU, _POD = Column("GPU", least=8, middle=True), Column("POD", least=10, middle=True)
_CONTAINERS, _REASON = Column("CONTAINERS", least=8, leave_out=4), Column("REASON", least=20, wrap=True, leave_out=1)

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
SHARE_COLUMNS = (
    _POD,
    _CONTAINERS,
    _GPU,
    Column("LEDGER", leave_out=2),
    Column("ENFORCED", leave_out=3),
    Column("USED", leave_out=6),
    Column("PROCESSES", leave_out=5),
    Column("LIBRARY", leave_out=7),
    Column("LIMITS"),
    _REASON,
)
_STYLES = {State.IN_FORCE: "good", State.IDLE: "dim", State.BROKEN: "bad"}
_PROBLEMS = {UNLIMITED: "Unlimited"}  # any other process is nobody's here
_FOREIGN = "Foreign"


def problems(verdict: Verdict, names: Mapping[str, str]) -> Table:
    """A row for everything that is not in force, or not accounted for; `names`: of GPUs, by UUID."""
    rows: list[Row] = [
        (one.name, Cell(str(one.state), "bad"), *[NONE] * 5, sentence(one.reason))
        for one in verdict.nodes
        if one.state is State.BROKEN
    ]
    rows += [
        (
            names.get(one.gpu, one.gpu),
            Cell(str(one.state), "bad"),
            _pod(one.namespace, one.pod),
            ",".join(one.containers) or NONE,
            NONE,
            NONE,
            _used(one),
            sentence(one.reason),
        )
        for one in verdict.shares
        if one.state is State.BROKEN and not one.evaded  # the process itself has a row
    ]
    return Table(PROBLEM_COLUMNS, [*rows, *(_stray(one, names) for one in verdict.strays)])


def shares(verdict: Verdict, names: Mapping[str, str]) -> Table:
    """A row for each share on each GPU: what the ledger says, what the node holds it to, and what it uses."""
    return Table(SHARE_COLUMNS, [_share(one, names) for one in verdict.shares], what="shares")


def summary(verdict: Verdict) -> str:
    """As `41 of 41 containers limited on 12 nodes; 1 process is unlimited`."""
    limited, parts = verdict.containers(State.IN_FORCE), []
    if proven := sum(one.checked_at is not None for one in verdict.nodes):
        there = limited + verdict.containers(State.BROKEN)
        parts.append(f"{limited} of {_count(there, 'container')} limited on {_count(proven, 'node')}")
    if idle := verdict.containers(State.IDLE):
        parts.append(f"{_count(idle, 'container')} with nothing on a GPU")
    if taken := verdict.containers(State.CONDITION):
        nodes = sum(one.state is State.CONDITION for one in verdict.nodes)
        parts.append(f"{_count(taken, 'container')} on {_count(nodes, 'node')} by the GPUNode's condition alone")
    unlimited = sum(one.process.state == UNLIMITED for one in verdict.strays)
    if unlimited:
        parts.append(f"{_processes(unlimited)} of shares without a limit")
    if foreign := len(verdict.strays) - unlimited:
        parts.append(f"{_processes(foreign)} of no share")
    if broken := sum(one.state is State.BROKEN for one in verdict.nodes):
        parts.append(f"something is not in force on {_count(broken, 'node')}")
    if unknown := sum(one.state is State.UNKNOWN for one in verdict.nodes):
        parts.append(f"not certain of {_count(unknown, 'node')}")
    return "; ".join(parts) or "no node has GPUs that are shared by annotation"


def notes(verdict: Verdict) -> list[str]:
    """What could not be told, in a sentence each."""
    found: dict[str, list[str]] = {}
    for one in verdict.nodes:
        if one.state is State.UNKNOWN:
            found.setdefault(one.reason, []).append(one.name)
    told = [f"not certain of {_named(names)}: {reason}" for reason, names in found.items()]
    told += [f"{one.name}: {one.reason}" for one in verdict.nodes if one.state is State.IN_FORCE and one.reason]
    named = [one.name for one in verdict.nodes if one.checked_at is None and one.state is not State.UNKNOWN]
    if named:
        told.append(f"of {_named(named)} only the condition of the GPUNode is known, which names no container")
    return told


def document(verdict: Verdict, names: Mapping[str, str], said: Sequence[str]) -> documents.Document:
    """The whole as an `AuditList`: an item for each share on each GPU."""
    return documents.listing(
        "AuditList",
        [_item(one, names) for one in verdict.shares],
        processes=[_process(one, names) for one in verdict.strays],
        nodes=[_node(one) for one in verdict.nodes],
        summary={
            "inForce": None if verdict.uncertain and not verdict.broken else not verdict.broken,
            "limited": verdict.containers(State.IN_FORCE),
            "notLimited": verdict.containers(State.BROKEN),
            "idle": verdict.containers(State.IDLE),
            "sentence": summary(verdict),
        },
        notes=list(said),
    )


def _share(one: Held, names: Mapping[str, str]) -> Row:
    seen = one.seen
    return (
        _pod(one.namespace, one.pod),
        ",".join(one.containers) or NONE,
        names.get(one.gpu, one.gpu),
        _amounts(one.given),
        _enforced(one),
        _used(one),
        str(seen.processes) if seen else NONE,
        f"{seen.with_library}/{seen.processes}" if seen and seen.processes else NONE,
        Cell(str(one.state), _STYLES.get(one.state, "warn")),
        sentence(one.reason),
    )


def _enforced(one: Held) -> str | Cell:
    if one.seen is None or one.seen.enforced is None:
        return NONE
    return Cell(_amounts(one.seen.enforced), "" if one.seen.enforced == one.given else "warn")


def _amounts(one: Amounts) -> str:
    """`0.5..0.8+40Gi`: request, limit, memory."""
    request, limit = map(quantity.format_compute, (one.request_percent, one.limit_percent))
    return f"{request}..{limit}+{quantity.format_bytes(one.memory_bytes)}"


def _used(one: Held) -> str:
    return quantity.format_bytes(one.seen.charged_bytes + one.seen.overhead_bytes) if one.seen else NONE


def _stray(one: Stray, names: Mapping[str, str]) -> Row:
    process = one.process
    return (
        names.get(process.gpu, process.gpu),
        Cell(_PROBLEMS.get(process.state, _FOREIGN), "bad"),
        _pod(process.namespace, process.pod),
        process.container or NONE,
        str(process.pid),
        plain(process.name),
        UNKNOWN if process.used_bytes is None else quantity.format_bytes(process.used_bytes),
        sentence(process.reason),
    )


def _pod(namespace: str, pod: str) -> str:
    return f"{namespace}/{pod}" if pod else NONE


def _item(one: Held, names: Mapping[str, str]) -> dict[str, Any]:
    seen = one.seen
    return {
        "node": one.node,
        "gpu": {"name": names.get(one.gpu, ""), "uuid": one.gpu},
        "pod": {"namespace": one.namespace, "name": one.pod},
        "containers": list(one.containers),
        "limits": str(one.state),
        "reason": one.reason,
        "ledger": _amounts_document(one.given),
        "enforced": _amounts_document(seen.enforced if seen else None),
        "chargedBytes": seen.charged_bytes if seen else None,
        "overheadBytes": seen.overhead_bytes if seen else None,
        "processes": seen.processes if seen else None,
        "withLibrary": seen.with_library if seen else None,
    }


def _amounts_document(one: Amounts | None) -> dict[str, int | None]:
    return {
        "requestPercent": one.request_percent if one else None,
        "limitPercent": one.limit_percent if one else None,
        "memoryBytes": one.memory_bytes if one else None,
    }


def _process(one: Stray, names: Mapping[str, str]) -> dict[str, Any]:
    process = one.process
    return {
        "node": one.node,
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


def _node(one: Judged) -> dict[str, Any]:
    return {"name": one.name, "limits": str(one.state), "reason": one.reason, "checkedAt": one.checked_at}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _named(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"


def _processes(number: int) -> str:
    return f"{number} process" if number == 1 else f"{number} processes"
