"""Takes over the ledgers that the previous agent left to living processes, and remembers when records were lost.

A record says which process had which slot. The ledger itself is opened through a process that has it mapped. If no
process can be inspected, the ledger is unreachable but still in use: no other process may join that share until they
have ended, because an empty ledger next to a used one would hand out the same memory twice.

After a record was lost, processes that started before may use a ledger that no longer exists, through no fault of their
own. Processes that started later cannot, whatever they look like: a process could make itself look so.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Final

from deviceplugin.arbiter.ledgers import pages
from deviceplugin.arbiter.ledgers.ledger_record import LedgerRecord
from deviceplugin.arbiter.ledgers.share_ledger import ShareLedger
from deviceplugin.host import kernel_process, records
from deviceplugin.host.kernel_process import KernelProcess
from gpushare import contract

logger = logging.getLogger(__name__)

LOST_SUFFIX: Final = ".lost"


@dataclasses.dataclass(frozen=True, slots=True)
class Unreachable:
    """The processes that hold a ledger which the agent cannot open."""

    holders: tuple[KernelProcess, ...]


def take_over(record: LedgerRecord, *, proc: Path) -> ShareLedger | Unreachable | None:
    """Return the ledger of a record with its living processes, or None if no process has it.

    Slots of dead processes are cleared, and slots of processes that were found to have become another program. Only
    the processes before the first one with the ledger are inspected, and all of them together no longer than one: the
    node waits for this.
    """
    living: dict[int, KernelProcess] = {}
    ledger: pages.Ledger | None = None
    left_bytes = kernel_process.MAX_MAPS_BYTES
    for slot, (pid, start_ticks) in record.slots.items():
        process = kernel_process.find(pid, start_ticks, proc=proc)
        if process is None:
            continue
        if ledger is None:
            mapping = kernel_process.mapping(pid, record.ledger, proc=proc, max_bytes=left_bytes)
            left_bytes -= mapping.read_bytes
            if mapping.known and mapping.link is None:
                os.close(process.pidfd)
                continue
            ledger = _reopen(mapping.link, record) if mapping.link is not None else None
        living[slot] = process
    if not living:
        return None
    if ledger is None:
        return Unreachable(tuple(living.values()))
    share = ShareLedger(record.tenant, ledger, slot_count=record.slot_count, inherited=True)
    # Without `certain_slot`, living processes have their certain bytes where others have slots.
    with_certain = share.limits.certain_slot > 0
    for slot in range(share.limits.certain_slot or contract.LEDGER_SLOTS):
        if slot in living:
            share.admit(living[slot], slot, outdated=True)
        else:
            ledger.clear(slot, with_certain=with_certain)
    return share


def _reopen(link: Path, record: LedgerRecord) -> pages.Ledger | None:
    try:
        return pages.Ledger.reopen(link, len(record.tenant.grants), record.ledger)
    except (OSError, pages.PagesError):
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Loss:
    """The content of the file that says when records were lost last."""

    boot_id: str
    ticks: int


def loss_path(directory: Path) -> Path:
    """Return the file that says when records were lost, next to their directory."""
    return directory.with_name(f"{directory.name}{LOST_SUFFIX}")


def read_loss(directory: Path, boot_id: str) -> int | None:
    """Return when records were lost last, in kernel ticks since boot; 0 for never in this boot, None if unknown."""
    try:
        loss = records.read(_Loss, records.load(loss_path(directory)), newer=True)
        records.check(loss.ticks >= 0, "the time is before the boot")
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return None
    return loss.ticks if loss.boot_id == boot_id else 0


def write_loss(directory: Path, boot_id: str, ticks: int) -> None:
    """Record that records were lost at this time. A failed write is logged; the next agent will not know then."""
    try:
        records.write_file(loss_path(directory), json.dumps({"boot_id": boot_id, "ticks": ticks}))
    except OSError as error:
        logger.warning("Could not record the loss of ledger records", extra={"err": str(error)})
