"""One share's ledger: which process has which slot, from its first process to its last.

A slot belongs to its process until that process is dead, and is then cleared once. A closed socket proves nothing: a
living process still has its memory. The exception is a process that has become another program (exec), whose memory is
gone. Such a process no longer has the ledger mapped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from deviceplugin.arbiter.ledgers import ledger_record, pages
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host.kernel_process import KernelProcess
from gpushare import contract

# The initial number of slots that processes add up: eight cache lines. It doubles when more are needed.
FIRST_SLOT_COUNT: Final = 64


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
        self.limits = pages.LimitsPage(tenant.grants, slot_count=slot_count)
        self.freed_bytes = 0
        self.changes = 0
        self._inherited = inherited
        self._members: dict[int, KernelProcess] = {}
        self._outdated: set[int] = set()
        self._overheads: Mapping[int, Sequence[int]] = {}  # by slot: bytes beyond its charges on each GPU

    @classmethod
    def make(cls, tenant: Tenant) -> ShareLedger:
        """Create an empty ledger."""
        ledger = pages.Ledger.make(len(tenant.grants))
        return cls(tenant, ledger, slot_count=FIRST_SLOT_COUNT, inherited=False)

    @property
    def members(self) -> Mapping[int, KernelProcess]:
        """The processes by slot."""
        return self._members

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
        """Return what a process holds on a GPU beyond its charges."""
        held = self._overheads.get(slot)
        return held[gpu] if held is not None else 0

    def slot_of(self, who: KernelProcess) -> int | None:
        """Return the process's slot, or None."""
        for slot, member in self._members.items():
            if (member.pid, member.start_ticks) == (who.pid, who.start_ticks):
                return slot
        return None

    def contains(self, member: KernelProcess) -> bool:
        """Whether this very object still has a slot."""
        return any(process is member for process in self._members.values())

    def free_slot(self) -> int:
        """Return the lowest free slot. Raises JoinError."""
        most = self.limits.certain_slot or contract.LEDGER_SLOTS
        slot = next((slot for slot in range(most) if slot not in self._members), None)
        if slot is None:
            raise JoinError(f"{most} processes of this container already use the GPU, which is the maximum")
        if self._inherited and slot >= self.limits.slot_count:
            raise JoinError(
                f"the node's agent was restarted: until an earlier process ends, only "
                f"{self.limits.slot_count} processes of this container can use the GPU"
            )
        return slot

    def update(self, tenant: Tenant) -> None:
        """Change the share's amounts on its GPUs."""
        self.changes += 1
        self.tenant = tenant
        self.limits.write(tenant.grants)

    def admit(self, who: KernelProcess, slot: int, *, outdated: bool = False) -> None:
        """Assign the slot to `who`, whose pidfd this ledger now owns. outdated: it uses an earlier agent's limits
        page.
        """
        self.changes += 1
        slot_count = _reaching(slot, self.limits.slot_count)
        if slot_count != self.limits.slot_count:
            self.limits.set_slot_count(slot_count)
        self._members[slot] = who
        if outdated:
            self._outdated.add(slot)

    def set_overheads(self, overheads: Mapping[int, Sequence[int]]) -> None:
        """Set what the processes hold beyond their charges, by slot and GPU."""
        self._overheads = {slot: held for slot, held in overheads.items() if slot in self._members}
        for gpu in range(len(self.tenant.grants)):
            overhead_bytes = sum(held[gpu] for held in self._overheads.values())
            self.limits.set_overhead(gpu, overhead_bytes)

    def use_current_page(self, slot: int) -> None:
        """Record that the process in this slot now uses the current limits page."""
        self._outdated.discard(slot)

    def release(self, slot: int) -> int:
        """Clear the slot and close its process's pidfd. Return the bytes that were in it. Call it once per process."""
        os.close(self._members.pop(slot).pidfd)
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

    def dead_slots(self) -> Iterator[int]:
        """Yield the slots of dead processes."""
        for slot, member in list(self._members.items()):
            if member.is_dead():
                yield slot

    def record(
        self, boot_id: str, *, joining: tuple[int, KernelProcess] | None = None, tenant: Tenant | None = None
    ) -> ledger_record.LedgerRecord:
        """Return the record for the next agent, with a process about to join, or with amounts about to be applied."""
        slots = {slot: (member.pid, member.start_ticks) for slot, member in self._members.items()}
        slot_count = self.limits.slot_count
        if joining is not None:
            slot, who = joining
            slots[slot] = (who.pid, who.start_ticks)
            slot_count = _reaching(slot, slot_count)
        return ledger_record.LedgerRecord(boot_id, tenant or self.tenant, self.ledger.device_inode, slot_count, slots)

    def close(self) -> None:
        """Close all descriptors. Living processes keep their pages."""
        for member in self._members.values():
            os.close(member.pidfd)
        self._members.clear()
        self.limits.close()
        self.ledger.close()


def _reaching(slot: int, slot_count: int) -> int:
    while slot >= slot_count:
        slot_count *= 2
    return min(slot_count, contract.LEDGER_SLOTS)
