"""Columns and cells that both tables of `audit` share."""

from __future__ import annotations

from gpushare import quantity
from kubectl_gpushare.output.table import NONE, Column
from kubectl_gpushare.planning.auditing import ShareVerdict

GPU, POD = Column("GPU", least=8, middle=True), Column("POD", least=10, middle=True)
CONTAINERS, REASON = Column("CONTAINERS", least=8, leave_out=4), Column("REASON", least=20, wrap=True, leave_out=1)


def pod(namespace: str, name: str) -> str:
    """The cell of a pod: `ml/trainer`."""
    return f"{namespace}/{name}" if name else NONE


def used(share: ShareVerdict) -> str:
    """The memory charged to a share, including its contexts."""
    return quantity.format_bytes(share.seen.charged_bytes + share.seen.overhead_bytes) if share.seen else NONE
