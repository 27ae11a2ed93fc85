"""One share's ledger, from its first process to its last: which process has which slot, also after the agent's restart.

A slot belongs to its process until that process is dead, and is then cleared once. A closed socket proves nothing: a
living process still has its memory. The exception is a process that has become another program (exec), whose memory is
gone. Such a process no longer has the ledger mapped.

The ledgers are shared memory, which survives in the processes that have it mapped; the next agent opens it there. The
owners of the slots are not in that memory, so each share has a small file for them. It is written before a process
learns its slot, and is valid only until the next boot. Files on a tmpfs could not be sealed (`pages`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import pages
from deviceplugin.arbiter.tenant import Tenant, invalid
from deviceplugin.host import kernel_process, records
from deviceplugin.host.kernel_process import KernelProcess
from gpushare import contract

logger = logging.getLogger(__name__)

# The initial number of slots that processes add up: eight cache lines. It doubles when more are needed.
FIRST_SLOT_COUNT: Final = 64


class RecordError(ValueError):
    """The file is not a valid record; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One share's ledger. `slots`: pid and start of the process in each slot. `ledger`: its device and inode."""

    boot_id: str
    tenant: Tenant
    ledger: tuple[int, int]
    slot_count: int
    slots: Mapping[int, tuple[int, int]]
    layout: int = contract.PAGES_LAYOUT  # of the ledger; missing in files of release 0.1.0


def write_record(directory: Path, record: LedgerRecord) -> None:
    """Write the file. Release 0.1.0 rejects unknown fields in a tenant or a grant, so new fields go next to these."""
    document = dataclasses.asdict(record)
    for field in ("group", "isolation", "memory_limit_bytes"):  # joining processes set them again
        del document["tenant"][field]
    records.write_file(record_path(directory, record.tenant), json.dumps(document, separators=(",", ":")))


def read_record(path: Path) -> LedgerRecord:
    """Read a record's file. Raises RecordError."""
    try:
        document = records.load(path)
        layout = document.get("layout", 0)
        records.check(layout == contract.PAGES_LAYOUT, f"its pages have layout {layout}, unknown to this agent")
        slots = {int(slot): records.read(tuple[int, int], who) for slot, who in document["slots"].items()}
        slot_count = records.read(int, document["slot_count"])
        wrong = [slot for slot in (*slots, slot_count - 1) if not -1 <= slot < contract.LEDGER_SLOTS]
        records.check(not wrong and -1 not in slots, f"invalid slots: {wrong or slots}")
        tenant = records.read(Tenant, document["tenant"], newer=True)
        refused = invalid(tenant)
        records.check(refused is None, str(refused))
        return LedgerRecord(
            boot_id=records.read(str, document["boot_id"]),
            tenant=tenant,
            ledger=records.read(tuple[int, int], document["ledger"]),
            slot_count=slot_count,
            slots=slots,
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RecordError(f"{path} is not a record of a ledger: {error}") from error


def record_path(directory: Path, tenant: Tenant) -> Path:
    return directory / f"{tenant.key}.json"


def record_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.json"))


class JoinError(Exception):
    """A process cannot get a slot. The message is a sentence for its stderr."""


class ShareLedger:
    """The ledger of one share.

    freed_bytes: the total of the bytes that dead processes left in their slots. changes: a counter of updates, and of
    slots that were assigned or cleared.

    After the agent restarts, the earlier processes keep a limits page that cannot be written any more, until they have
    reconnected and sent a message. New processes get the new page, and no slot that the old page excludes from the sum.
    """

    def __init__(self, tenant: Tenant, ledger: pages.Ledger, *, slot_count: int, inherited: bool) -> None:
        self.tenant = tenant
        self.ledger = ledger
        burst_bytes = tenant.memory_limit_bytes or 0
        self.limits = pages.LimitsPage(tenant.enforced, slot_count=slot_count, burst_bytes=burst_bytes)
        self.freed_bytes = self.changes = 0
        self._inherited = inherited
        self.members: dict[int, KernelProcess] = {}
        self._outdated: set[int] = set()
        self._overheads: Mapping[int, Sequence[int]] = {}  # by slot: bytes beyond its charges on each GPU

    @classmethod
    def make(cls, tenant: Tenant) -> ShareLedger:
        ledger = pages.Ledger.make(len(tenant.grants))
        return cls(tenant, ledger, slot_count=FIRST_SLOT_COUNT, inherited=False)

    @property
    def outdated(self) -> bool:
        """Whether a process may still use an earlier agent's limits page."""
        return bool(self._outdated)

    def used_bytes(self) -> tuple[int, ...]:
        """Return the processes' charges, by GPU in the order of the grants."""
        return self.ledger.used_bytes(self.limits.slot_count)

    def held_bytes(self) -> int:
        """Return charges plus overhead on the GPU where the share uses most."""
        held = zip(self.used_bytes(), self.limits.overhead_bytes(), strict=True)
        return max((used + overhead for used, overhead in held), default=0)

    def certain(self, slot: int, gpu: int) -> tuple[int, int]:
        """Return a process's certain bytes on a GPU, and its count of announced decreases. Raises PagesError."""
        return self.ledger.certain(slot, gpu) if slot < self.limits.certain_slot else (0, 0)

    def overhead_bytes(self, slot: int, gpu: int) -> int:
        held = self._overheads.get(slot)
        return held[gpu] if held is not None else 0

    def slot_of(self, who: KernelProcess) -> int | None:
        same = (who.pid, who.start_ticks)
        return next((slot for slot, member in self.members.items() if (member.pid, member.start_ticks) == same), None)

    def contains(self, member: KernelProcess) -> bool:
        """Whether this very object still has a slot."""
        return any(process is member for process in self.members.values())

    def free_slot(self) -> int:
        """Return the lowest free slot. Raises JoinError."""
        most = self.limits.certain_slot or contract.LEDGER_SLOTS
        slot = next((slot for slot in range(most) if slot not in self.members), None)
        if slot is None:
            raise JoinError(f"{most} processes of this container already use the GPU, which is the maximum")
        if self._inherited and slot >= self.limits.slot_count:
            raise JoinError(
                f"the node's agent was restarted: until an earlier process ends, only "
                f"{self.limits.slot_count} processes of this container can use the GPU"
            )
        return slot

    def update(self, tenant: Tenant) -> None:
        self.changes += 1
        self.tenant = tenant
        self.limits.write(tenant.enforced, tenant.memory_limit_bytes or 0)

    def complete(self, found: Tenant) -> None:
        """Set what records lack."""
        before = self.tenant
        self.tenant = dataclasses.replace(
            before, group=found.group, isolation=found.isolation, memory_limit_bytes=found.memory_limit_bytes
        )
        if self.tenant != before:
            self.limits.write(self.tenant.enforced, self.tenant.memory_limit_bytes or 0)

    def admit(self, who: KernelProcess, slot: int, *, outdated: bool = False) -> None:
        """Assign the slot to `who`, whose pidfd is ours now. outdated: it uses an earlier agent's limits page."""
        self.changes += 1
        self.limits.set_slot_count(_reaching(slot, self.limits.slot_count))
        self.members[slot] = who
        if outdated:
            self._outdated.add(slot)

    def set_overheads(self, overheads: Mapping[int, Sequence[int]]) -> None:
        self._overheads = {slot: held for slot, held in overheads.items() if slot in self.members}
        for gpu in range(len(self.tenant.grants)):
            self.limits.set_overhead(gpu, sum(held[gpu] for held in self._overheads.values()))

    def use_current_page(self, slot: int) -> None:
        self._outdated.discard(slot)

    def release(self, slot: int) -> int:
        """Clear the slot and close its process's pidfd. Return the bytes that were in it. Call it once per process."""
        os.close(self.members.pop(slot).pidfd)
        self._outdated.discard(slot)
        return self.clear(slot)

    def clear(self, slot: int) -> int:
        """Clear the slot of a process that has become another program."""
        self.changes += 1
        freed = self.ledger.clear(slot, with_certain=self.limits.certain_slot > 0)
        self.freed_bytes += freed
        if slot in self._overheads:
            self.set_overheads({other: held for other, held in self._overheads.items() if other != slot})
        return freed

    def record(
        self, boot_id: str, *, joining: tuple[int, KernelProcess] | None = None, tenant: Tenant | None = None
    ) -> LedgerRecord:
        """Return the record for the next agent, with a process about to join, or with amounts about to be applied."""
        slots = {slot: (member.pid, member.start_ticks) for slot, member in self.members.items()}
        slot_count = self.limits.slot_count
        if joining is not None:
            slot, who = joining
            slots[slot] = (who.pid, who.start_ticks)
            slot_count = _reaching(slot, slot_count)
        return LedgerRecord(boot_id, tenant or self.tenant, self.ledger.device_inode, slot_count, slots)

    def close(self) -> None:
        for member in self.members.values():
            os.close(member.pidfd)
        self.members.clear()
        self.limits.close()
        self.ledger.close()


def _reaching(slot: int, slot_count: int) -> int:
    while slot >= slot_count:
        slot_count *= 2
    return min(slot_count, contract.LEDGER_SLOTS)


def take_over(record: LedgerRecord, *, proc: Path) -> ShareLedger | tuple[KernelProcess, ...]:
    """Return the ledger of a record with its living processes, or these processes if none of them can be inspected.

    In that case the ledger is unreachable but still in use: no other process may join that share until they have ended,
    because an empty ledger next to a used one would hand out the same memory twice.

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
            if mapping.link is not None:
                with contextlib.suppress(OSError, pages.PagesError):
                    ledger = pages.Ledger.reopen(mapping.link, len(record.tenant.grants), record.ledger)
        living[slot] = process
    if ledger is None:
        return tuple(living.values())
    share = ShareLedger(record.tenant, ledger, slot_count=record.slot_count, inherited=True)
    # Without `certain_slot`, living processes have their certain bytes where others have slots.
    with_certain = share.limits.certain_slot > 0
    for slot in range(share.limits.certain_slot or contract.LEDGER_SLOTS):
        if slot in living:
            share.admit(living[slot], slot, outdated=True)
        else:
            ledger.clear(slot, with_certain=with_certain)
    return share


def loss_path(directory: Path) -> Path:
    """Return the file that says when records were lost last, next to their directory."""
    return directory.with_name(f"{directory.name}.lost")


def read_loss(directory: Path, boot_id: str) -> int | None:
    """Return when records were lost last, in kernel ticks since boot; 0 for never in this boot, None if unknown.

    Processes that started before may use a ledger that no longer exists, through no fault of their own. Processes that
    started later cannot, whatever they look like: a process could make itself look so.
    """
    try:
        loss = records.load(loss_path(directory))
        lost_boot_id, ticks = records.read(str, loss["boot_id"]), records.read(int, loss["ticks"])
        records.check(ticks >= 0, "the time is before the boot")
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ticks if lost_boot_id == boot_id else 0


def write_loss(directory: Path, boot_id: str, ticks: int) -> None:
    """Record that records were lost at this time. A failed write is logged; the next agent will not know then."""
    try:
        records.write_file(loss_path(directory), json.dumps({"boot_id": boot_id, "ticks": ticks}))
    except OSError as error:
        logger.warning("Could not record the loss of ledger records", extra={"err": str(error)})
