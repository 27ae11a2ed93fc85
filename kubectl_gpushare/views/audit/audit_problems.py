"""The table of limits not in force and of processes without a limit; and the names of their pods and GPUs."""

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

_PROBLEMS = {UNLIMITED: "Unlimited"}  # any other stray belongs to no share
_FOREIGN = "Foreign"


def table(verdict: AuditVerdict, names: Mapping[str, str]) -> Table:
    """A row for each node, share and process without a limit in force; `names`: of GPUs, by UUID."""
    rows: list[Row] = [
        (node.name, Cell(str(node.state), "bad"), *[NONE] * 5, sentence(node.reason))
        for node in verdict.nodes
        if node.state is AuditState.BROKEN
    ]
    rows += [
        (
            names.get(share.gpu, share.gpu),
            Cell(str(share.state), "bad"),
            cells.pod(share.namespace, share.pod),
            ",".join(share.containers) or NONE,
            NONE,
            NONE,
            cells.used(share),
            sentence(share.reason),
        )
        for share in verdict.shares
        if share.state is AuditState.BROKEN and not share.evaded  # its process has a row
    ]
    return Table(COLUMNS, [*rows, *(_stray(stray, names) for stray in verdict.strays)])


def names_of(verdict: AuditVerdict, names: Mapping[str, str]) -> Iterator[str]:
    """The names for `-o name`: pods, GPUs with processes of no pod, nodes with nothing more specific; each once."""
    subjects = [("", f"gpunode.gpushare.io/{node.name}") for node in verdict.nodes if node.state is AuditState.BROKEN]
    subjects += [(share.namespace, f"pod/{share.pod}") for share in verdict.shares if share.state is AuditState.BROKEN]
    for process in (stray.process for stray in verdict.strays):
        gpu = f"gpu.gpushare.io/{names.get(process.gpu, process.gpu)}"
        subjects.append((process.namespace, f"pod/{process.pod}") if process.pod else ("", gpu))
    return (name for _, name in dict.fromkeys(subjects))


def _stray(stray: Stray, names: Mapping[str, str]) -> Row:
    process = stray.process
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
