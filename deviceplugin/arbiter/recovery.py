"""What the last agent left: the ledgers of processes that still live.

A record tells who had which slot; the ledger itself is taken from whichever of them has it mapped. When none of them
can be looked into, the ledger is out of reach but not gone: nobody else may join that share until they have ended, for
an empty ledger beside a used one would give the same memory twice.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from deviceplugin.arbiter import pages
from deviceplugin.arbiter.ledger_record import LedgerRecord
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import KernelProcess
from gpushare import contract


@dataclasses.dataclass(frozen=True, slots=True)
class Unreachable:
    """The processes that hold a ledger which we cannot open."""

    holders: tuple[KernelProcess, ...]


def take_over(record: LedgerRecord, *, proc: Path) -> ShareLedger | Unreachable | None:
    """The group of a record, with those of its processes that still live; None when no process has its ledger.

    The slots of processes that died are cleared, and of those that were found to have become another program. Nobody
    who was not looked at before the ledger was found is looked at here, and no more of all of them than of one: the
    node waits.
    """
    living: dict[int, KernelProcess] = {}
    ledger: pages.Ledger | None = None
    left_bytes = kernel_process.MAX_MAPS_BYTES
    for slot, (pid, start_ticks) in record.slots.items():
        who = kernel_process.find(pid, start_ticks, proc=proc)
        if who is None:
            continue
        if ledger is None:
            seen = kernel_process.mapping(pid, record.ledger, proc=proc, most_bytes=left_bytes)
            left_bytes -= seen.looked_bytes
            if seen.known and seen.link is None:
                os.close(who.pidfd)
                continue
            ledger = _opened(seen.link, record) if seen.link is not None else None
        living[slot] = who
    if not living:
        return None
    if ledger is None:
        return Unreachable(tuple(living.values()))
    group = ShareLedger(record.tenant, ledger, slot_count=record.slot_count, inherited=True)
    with_certain = group.limits.certain_slot > 0  # or what living processes say of themselves would be taken for slots
    for slot in range(group.limits.certain_slot or contract.LEDGER_SLOTS):
        if slot in living:
            group.admit(living[slot], slot, outdated=True)
        else:
            ledger.clear(slot, with_certain=with_certain)
    return group


def _opened(link: Path, record: LedgerRecord) -> pages.Ledger | None:
    try:
        return pages.Ledger.reopen(link, len(record.tenant.grants), record.ledger)
    except (OSError, pages.PagesError):
        return None
