"""The proof: a line for each share on each GPU."""

from __future__ import annotations

from collections.abc import Mapping

from gpushare import quantity
from kubectl_gpushare.output.table import NONE, Cell, Column, Row, Table, sentence
from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict, ShareVerdict
from kubectl_gpushare.source.audits import Amounts
from kubectl_gpushare.views.audit import cells

COLUMNS = (
    cells.POD,
    cells.CONTAINERS,
    cells.GPU,
    Column("LEDGER", leave_out=2),
    Column("ENFORCED", leave_out=3),
    Column("USED", leave_out=6),
    Column("PROCESSES", leave_out=5),
    Column("LIBRARY", leave_out=7),
    Column("LIMITS"),
    cells.REASON,
)

_STYLES = {AuditState.IN_FORCE: "good", AuditState.IDLE: "dim", AuditState.BROKEN: "bad"}


def table(verdict: AuditVerdict, names: Mapping[str, str]) -> Table:
    """A row for each share on each GPU: what the ledger says, what the node holds it to, and what it uses."""
    return Table(COLUMNS, [_share(one, names) for one in verdict.shares], what="shares")


def _share(one: ShareVerdict, names: Mapping[str, str]) -> Row:
    seen = one.seen
    return (
        cells.pod(one.namespace, one.pod),
        ",".join(one.containers) or NONE,
        names.get(one.gpu, one.gpu),
        _amounts(one.given),
        _enforced(one),
        cells.used(one),
        str(seen.processes) if seen else NONE,
        f"{seen.with_library}/{seen.processes}" if seen and seen.processes else NONE,
        Cell(str(one.state), _STYLES.get(one.state, "warn")),
        sentence(one.reason),
    )


def _enforced(one: ShareVerdict) -> str | Cell:
    if one.seen is None or one.seen.enforced is None:
        return NONE
    return Cell(_amounts(one.seen.enforced), "" if one.seen.enforced == one.given else "warn")


def _amounts(one: Amounts) -> str:
    """`0.5..0.8+40Gi`: request, limit, memory."""
    request, limit = map(quantity.format_compute, (one.request_percent, one.limit_percent))
    return f"{request}..{limit}+{quantity.format_bytes(one.memory_bytes)}"
