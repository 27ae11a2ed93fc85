"""The shares that have processes, as the arbiter told of them last; what they hold is read from their own pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from deviceplugin.arbiter.ledgers import pages
from deviceplugin.arbiter.ledgers.share_ledgers import ShareUse
from deviceplugin.arbiter.messages import LeaseReport, LedgerMember, Overhead, RunningShareState
from deviceplugin.arbiter.scheduling.gpu_leases import LeaseUsage
from deviceplugin.arbiter.tenant import Tenant


class RunningShare:
    """One of them. `overheads`: what the arbiter was told of its processes; None if it may know that no more."""

    def __init__(self, state: RunningShareState, limits: pages.LimitsView, ledger: pages.Ledger) -> None:
        self.limits = limits
        self.ledger = ledger
        self.update(state)

    def update(self, state: RunningShareState) -> None:
        """Take over what the arbiter told of the share."""
        self.tenant: Tenant = state.tenant
        self.members: Mapping[int, LedgerMember] = {member.slot: member for member in state.members}
        self.overheads: tuple[Overhead, ...] | None = None

    def used_bytes(self) -> tuple[int, ...]:
        """What the processes are charged, by GPU in the order of the grants. Raises PagesError."""
        return self.ledger.used_bytes(self.limits.slot_count)

    def certain(self, slot: int, gpu: int) -> tuple[int, int]:
        """What a process says is on a GPU for certain, and how often it was about to be less. Raises PagesError."""
        return self.ledger.certain(slot, gpu) if slot < self.limits.certain_slot else (0, 0)

    def overhead_bytes(self, slot: int, gpu: int) -> int:
        """What is counted of a process on a GPU beyond its charges; nothing where the arbiter may not know it."""
        member = self.members.get(slot)
        for overhead in self.overheads or ():
            if member is not None and (overhead.pid, overhead.start_ticks) == (member.pid, member.start_ticks):
                return overhead.held_bytes[gpu]
        return 0

    def close(self) -> None:
        """Let go of its pages."""
        self.limits.close()
        self.ledger.close()


class Shares:
    """All shares of this node that have processes."""

    def __init__(self) -> None:
        self._shares: dict[str, RunningShare] = {}
        self._lease_reports: tuple[LeaseReport, ...] = ()

    def all(self) -> tuple[RunningShare, ...]:
        """Every share with a process."""
        return tuple(self._shares.values())

    def get(self, key: str) -> RunningShare | None:
        """The one with this key, if it has a process."""
        return self._shares.get(key)

    def uses(self) -> Iterator[ShareUse]:
        """What every share holds now."""
        for share in self._shares.values():
            overheads = tuple(record.overhead_bytes for record in share.limits.read())
            yield ShareUse(share.tenant, share.used_bytes(), len(share.members), overheads)

    def lease_usage(self) -> Iterator[LeaseUsage]:
        """What every share has had of its GPUs, by the last report."""
        for turn in self._lease_reports:
            share = self._shares.get(turn.share)
            if share is not None:
                had = {field: getattr(turn, field) for field in _USAGE_FIELDS}
                yield LeaseUsage(share.tenant, **had)

    def update(self, state: RunningShareState, descriptors: Sequence[int]) -> None:
        """A share is so now; with descriptors of its limits and ledger, which are ours to close, if they are new."""
        key = state.tenant.key
        if not descriptors:
            self._shares[key].update(state)
            return
        self.remove(key)
        limits, ledger = descriptors
        count = len(state.tenant.grants)
        self._shares[key] = RunningShare(state, pages.LimitsView(limits, count), pages.Ledger(ledger, count))

    def remove(self, key: str) -> None:
        """A share has no process any more."""
        share = self._shares.pop(key, None)
        if share is not None:
            share.close()

    def set_lease_reports(self, turns: tuple[LeaseReport, ...]) -> None:
        """That is what shares have had of their GPUs."""
        self._lease_reports = turns

    def close(self) -> None:
        """Close the descriptors of all pages."""
        for key in list(self._shares):
            self.remove(key)


_USAGE_FIELDS = tuple(field.name for field in dataclasses.fields(LeaseReport) if field.name != "share")
