"""The shares with processes, as the arbiter last reported them. Their memory use is read from their own pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from deviceplugin.arbiter.ledgers import pages
from deviceplugin.arbiter.ledgers.share_ledgers import ShareUse
from deviceplugin.arbiter.messages import LeaseReport, LedgerMember, Overhead, RunningShareState
from deviceplugin.arbiter.scheduling.gpu_leases import LeaseUsage
from deviceplugin.arbiter.tenant import Tenant


class RunningShare:
    """A share with processes. `overheads`: as sent to the arbiter, or None if the arbiter may not have them any
    more.
    """

    def __init__(self, state: RunningShareState, limits: pages.LimitsView, ledger: pages.Ledger) -> None:
        self.limits = limits
        self.ledger = ledger
        self.update(state)

    def update(self, state: RunningShareState) -> None:
        """Apply a report of the arbiter."""
        self.tenant: Tenant = state.tenant
        self.members: Mapping[int, LedgerMember] = {member.slot: member for member in state.members}
        self.overheads: tuple[Overhead, ...] | None = None

    def used_bytes(self) -> tuple[int, ...]:
        """Return the processes' charges, by GPU in the order of the grants. Raises PagesError."""
        return self.ledger.used_bytes(self.limits.slot_count)

    def certain(self, slot: int, gpu: int) -> tuple[int, int]:
        """Return a process's certain bytes on a GPU, and its count of announced decreases. Raises PagesError."""
        return self.ledger.certain(slot, gpu) if slot < self.limits.certain_slot else (0, 0)

    def overhead_bytes(self, slot: int, gpu: int) -> int:
        """Return what a process holds on a GPU beyond its charges; 0 if the arbiter may not know it."""
        member = self.members.get(slot)
        for overhead in self.overheads or ():
            if member is not None and (overhead.pid, overhead.start_ticks) == (member.pid, member.start_ticks):
                return overhead.held_bytes[gpu]
        return 0

    def close(self) -> None:
        """Close the share's pages."""
        self.limits.close()
        self.ledger.close()


class Shares:
    """All shares of this node with processes."""

    def __init__(self) -> None:
        self._shares: dict[str, RunningShare] = {}
        self._lease_reports: tuple[LeaseReport, ...] = ()

    def all(self) -> tuple[RunningShare, ...]:
        """Return all shares."""
        return tuple(self._shares.values())

    def get(self, key: str) -> RunningShare | None:
        """Return the share with this key, or None if it has no process."""
        return self._shares.get(key)

    def uses(self) -> Iterator[ShareUse]:
        """Yield the memory use of every share."""
        for share in self._shares.values():
            overheads = tuple(record.overhead_bytes for record in share.limits.read())
            yield ShareUse(share.tenant, share.used_bytes(), len(share.members), overheads)

    def lease_usage(self) -> Iterator[LeaseUsage]:
        """Yield every share's use of its GPUs, from the last report."""
        for turn in self._lease_reports:
            share = self._shares.get(turn.share)
            if share is not None:
                had = {field: getattr(turn, field) for field in _USAGE_FIELDS}
                yield LeaseUsage(share.tenant, **had)

    def update(self, state: RunningShareState, descriptors: Sequence[int]) -> None:
        """Add or update a share. New shares come with descriptors of limits and ledger, which this object then owns."""
        key = state.tenant.key
        if not descriptors:
            self._shares[key].update(state)
            return
        self.remove(key)
        limits, ledger = descriptors
        count = len(state.tenant.grants)
        self._shares[key] = RunningShare(state, pages.LimitsView(limits, count), pages.Ledger(ledger, count))

    def remove(self, key: str) -> None:
        """Remove a share whose last process has ended."""
        share = self._shares.pop(key, None)
        if share is not None:
            share.close()

    def set_lease_reports(self, turns: tuple[LeaseReport, ...]) -> None:
        """Store the lease reports of the last report."""
        self._lease_reports = turns

    def close(self) -> None:
        """Close the pages of all shares."""
        for key in list(self._shares):
            self.remove(key)


_USAGE_FIELDS = tuple(field.name for field in dataclasses.fields(LeaseReport) if field.name != "share")
