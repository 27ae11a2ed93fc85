"""What the last agent left: the ledgers of processes that still live.

A record tells who had which slot; the ledger itself is taken from whichever of them has it mapped. When none of them
can be looked into, the ledger is out of reach but not gone: nobody else may join that share until they have ended, for
an empty ledger beside a used one would give the same memory twice.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from deviceplugin.arbiter import pages, process
from deviceplugin.arbiter.group import Group
from deviceplugin.arbiter.process import Process
from deviceplugin.arbiter.record import Record
from gpushare import contract


@dataclasses.dataclass(frozen=True, slots=True)
class Unreachable:
    """The processes that hold a ledger which we cannot open."""

    holders: tuple[Process, ...]


def take_over(found: Record, *, proc: Path) -> Group | Unreachable | None:
    """The group of a record, with those of its processes that still live; None when no process has its ledger.

    The slots of processes that died are cleared, and of those that were found to have become another program. Nobody
    who was not looked at before the ledger was found is looked at here, and no more of all of them than of one: the
    node waits.
    """
    living: dict[int, Process] = {}
    ledger: pages.Ledger | None = None
    left_bytes = process.MOST_MAPS_BYTES
    for slot, (pid, start_ticks) in found.slots.items():
        who = process.find(pid, start_ticks, proc=proc)
        if who is None:
            continue
        if ledger is None:
            seen = process.mapping(pid, found.ledger, proc=proc, most_bytes=left_bytes)
            left_bytes -= seen.looked_bytes
            if seen.known and seen.link is None:
                os.close(who.pidfd)
                continue
            ledger = _opened(seen.link, found) if seen.link is not None else None
        living[slot] = who
    if not living:
        return None
    if ledger is None:
        return Unreachable(tuple(living.values()))
    group = Group(found.tenant, ledger, slot_count=found.slot_count, inherited=True)
    with_certain = group.limits.certain_slot > 0  # or what living processes say of themselves would be taken for slots
    for slot in range(group.limits.certain_slot or contract.LEDGER_SLOTS):
        if slot in living:
            group.admit(living[slot], slot, outdated=True)
        else:
            ledger.clear(slot, with_certain=with_certain)
    return group


def _opened(link: Path, found: Record) -> pages.Ledger | None:
    try:
        return pages.Ledger.reopen(link, len(found.tenant.grants), found.ledger)
    except (OSError, pages.PagesError):
        return None
