"""The table of `-o wide`: a line for each share on each GPU."""

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
    """A row for each share on each GPU: the ledger's amounts, the enforced ones, and the use."""
    return Table(COLUMNS, [_share(share, names) for share in verdict.shares], what="shares")


def _share(share: ShareVerdict, names: Mapping[str, str]) -> Row:
    seen = share.seen
    return (
        cells.pod(share.namespace, share.pod),
        ",".join(share.containers) or NONE,
        names.get(share.gpu, share.gpu),
        _amounts(share.granted),
        _enforced(share),
        cells.used(share),
        str(seen.processes) if seen else NONE,
        f"{seen.with_library}/{seen.processes}" if seen and seen.processes else NONE,
        Cell(str(share.state), _STYLES.get(share.state, "warn")),
        sentence(share.reason),
    )


def _enforced(share: ShareVerdict) -> str | Cell:
    if share.seen is None or share.seen.enforced is None:
        return NONE
    return Cell(_amounts(share.seen.enforced), "" if share.seen.enforced == share.granted else "warn")


def _amounts(amounts: Amounts) -> str:
    """`0.5..0.8+40Gi`: request, limit, memory."""
    request, limit = map(quantity.format_compute, (amounts.request_percent, amounts.limit_percent))
    return f"{request}..{limit}+{quantity.format_bytes(amounts.memory_bytes)}"
