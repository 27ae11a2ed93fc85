"""What is not in force, or not accounted for: a line each, and whom it concerns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpushare import quantity
from kubectl_gpushare.output.table import NONE, UNKNOWN, Cell, Column, Row, Table, plain, sentence
from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict, Stray
from kubectl_gpushare.source.audits import UNLIMITED
from kubectl_gpushare.views.audit import cells

COLUMNS = (
    cells.GPU,
    Column("PROBLEM"),
    cells.POD,
    cells.CONTAINERS,
    Column("PID", leave_out=2),
    Column("PROCESS", least=8, leave_out=3),
    Column("USED", leave_out=5),
    cells.REASON,
)

_PROBLEMS = {UNLIMITED: "Unlimited"}  # any other process is nobody's here
_FOREIGN = "Foreign"


def table(verdict: AuditVerdict, names: Mapping[str, str]) -> Table:
    """A row for everything that is not in force, or not accounted for; `names`: of GPUs, by UUID."""
    rows: list[Row] = [
        (one.name, Cell(str(one.state), "bad"), *[NONE] * 5, sentence(one.reason))
        for one in verdict.nodes
        if one.state is AuditState.BROKEN
    ]
    rows += [
        (
            names.get(one.gpu, one.gpu),
            Cell(str(one.state), "bad"),
            cells.pod(one.namespace, one.pod),
            ",".join(one.containers) or NONE,
            NONE,
            NONE,
            cells.used(one),
            sentence(one.reason),
        )
        for one in verdict.shares
        if one.state is AuditState.BROKEN and not one.evaded  # the process itself has a row
    ]
    return Table(COLUMNS, [*rows, *(_stray(one, names) for one in verdict.strays)])


def names_of(verdict: AuditVerdict, names: Mapping[str, str]) -> Iterator[str]:
    """As `-o name` has it: pods, GPUs with processes of no pod, nodes of which no more is known; each once."""
    found = [("", f"gpunode.gpushare.io/{one.name}") for one in verdict.nodes if one.state is AuditState.BROKEN]
    found += [(one.namespace, f"pod/{one.pod}") for one in verdict.shares if one.state is AuditState.BROKEN]
    for process in (stray.process for stray in verdict.strays):
        card = f"gpu.gpushare.io/{names.get(process.gpu, process.gpu)}"
        found.append((process.namespace, f"pod/{process.pod}") if process.pod else ("", card))
    return (name for _, name in dict.fromkeys(found))


def _stray(one: Stray, names: Mapping[str, str]) -> Row:
    process = one.process
    return (
        names.get(process.gpu, process.gpu),
        Cell(_PROBLEMS.get(process.state, _FOREIGN), "bad"),
        cells.pod(process.namespace, process.pod),
        process.container or NONE,
        str(process.pid),
        plain(process.name),
        UNKNOWN if process.used_bytes is None else quantity.format_bytes(process.used_bytes),
        sentence(process.reason),
    )
