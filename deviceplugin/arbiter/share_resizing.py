"""Memory that passes from one share to another: when allocations change, when it is lent, and when pods are deleted.

Increases apply at once, decreases as soon as the memory is unused. A decrease is a promise to the placer, which gives
the rest to another pod. So the limit is lowered first, and use is checked afterwards: a process charges its bytes
before it checks the limit, so either the process sees the new limit or we see its bytes. The new limit is recorded on
disk for the next agent, and then published in the status of that same version of the GPUNode. Before a limit is raised
again, the published value is withdrawn. So after any crash, no process has a higher limit than the status says.

Nothing is lowered while a process uses the limits page of an earlier agent, because that page cannot be written.

Memory that no share's request needs is lent to shares with a higher memory limit, when a charge was refused: first the
higher amount is published, where the ledger counts it, then the limit is raised. So placement never counts on lent
memory, and a request never waits for a process to free some. A loan that is unused for ten seconds is withdrawn, as in
a shrink.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from deviceplugin.arbiter import lending, tenant
from deviceplugin.arbiter.orphans import Orphans
from deviceplugin.arbiter.scheduling.leases import Leases
from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.share_ledgers import ShareLedgers
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode, Resize

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0  # between two checks whether a share can shrink
MAX_BYTES: Final = (1 << 63) - 1  # the maximum in the GPUNode's schema
PUBLISHED_SECONDS: Final = 10.0  # before `used_bytes` is updated; doubles with each update
MAX_PUBLISHED_SECONDS: Final = 320.0
LEND_SECONDS: Final = 2.0  # for the GPUNode's status; the library waits three

_Place = tuple[str, int]  # an allocation's id, and the position of the share in it


@dataclasses.dataclass(frozen=True, slots=True)
class _Published:
    """A resize in the GPUNode's status: since when it is there, and how long it stays before the next update."""

    said: Resize
    since: float
    pause_seconds: float


@dataclasses.dataclass(eq=False)
class ShareResizer:
    """Applies allocations to the shares of this node, inside a running event loop.

    node: returns the GPUNode as last seen. notify: called when the status needs an update. gpu_bytes: returns a GPU's
    total memory by UUID, or 0 if unknown. measured: whether the agent knows what processes hold beyond their charges;
    before that, no limit is lowered. orphans: the processes whose records are lost.
    """

    ledgers: ShareLedgers
    leases: Leases
    _: dataclasses.KW_ONLY
    orphans: Orphans
    node: Callable[[], GpuNode | None]
    notify: Callable[[], None]
    gpu_bytes: Callable[[str], int] = lambda _: 0
    measured: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._published: dict[_Place, _Published] = {}
        self._lost: frozenset[str] = frozenset()  # keys of shares that have processes but no allocation
        # Keys of shares that have, or had before they were lost, more than the ledger gave.
        self._lent: set[str] = set()
        self._origin_known: set[_Place] = set()  # shares that this arbiter lent memory, or searched for orphans
        self._former_limits: dict[str, int] = {}  # by key: the limit before it was lowered although more was in use
        self._timer: asyncio.TimerHandle | None = None
        self.lender = lending.Lender(self.clock)
        self.ledgers.on_pages_current = self.orphans.on_end = self.refresh
        self.ledgers.lend = self.lend

    def refresh(self) -> None:
        node = self.node()
        if node is not None and self.apply(node) != node.resizes:
            self.notify()

    async def lend(self, share: ShareLedger, gpu: int, refused_bytes: int) -> None:
        """Raise the share's limit for a charge that was refused, if its memory limit allows it and memory is free."""
        held_bytes = share.used_bytes()[gpu] + share.limits.overhead_bytes()[gpu]
        waiting = self.lender.ask(share.tenant, held_bytes, refused_bytes, gpu=gpu)
        if waiting is None:
            return
        self.refresh()
        await asyncio.wait({waiting}, timeout=LEND_SECONDS)
        self.lender.forget(share.tenant.key, waiting)

    def apply(self, node: GpuNode) -> tuple[Resize, ...]:
        """Apply this GPUNode to all shares, and return the resizes that its status should have."""
        running: dict[_Place, ShareLedger] = {}
        targets: dict[_Place, int] = {}
        lost: dict[str, ShareLedger] = {}
        waits = False
        for current in self.ledgers.all():
            entry = tenant.find_allocation(current.tenant, node)
            if entry is None:
                lost[current.tenant.key] = current
                continue
            place = (entry.id, current.tenant.share)
            running[place] = current
        for key in lost:
            if key not in self._lost:
                logger.warning(
                    "A running share is not in the ledger: its processes keep their limits",
                    extra=_log_fields(lost[key].tenant),
                )
        self._lost = frozenset(lost)
        free = lending.free_bytes(node, lost.values(), self.gpu_bytes)
        by_id = {entry.id: entry for entry in node.allocations} if running else {}
        for place, current in running.items():
            targets[place] = self.lender.decide(current, node, by_id[place[0]], free)
            waits |= not self._apply_to(current, node, by_id[place[0]], targets[place])
        self._note_losses(running, lost, by_id)
        entries = []
        resizes = {(resize.allocation, resize.share): resize for resize in node.resizes}
        self._search_orphans(node, running, targets)
        for entry in node.allocations:
            for position, share in enumerate(entry.shares):
                place = (entry.id, position)
                ledger, before = running.get(place), resizes.get(place)
                unenforced_bytes = self._unenforced_bytes(entry, position, ledger, before)
                has_loan = unenforced_bytes > 0 or self._has_loan(
                    entry, position, ledger, before, targets.get(place, 0)
                )
                if share.shrink_to_bytes is None and not has_loan:
                    continue
                said = self._resize_status(entry, position, ledger, before, targets.get(place, 0), unenforced_bytes)
                waits |= said.memory_bytes > (share.shrink_to_bytes or 0)
                entries.append(said)
        for said in self._orphaned(lost.values(), resizes):
            waits = True
            entries.append(said)
        for current in running.values():
            self.lender.answer(current.tenant)
        self.lender.keep_only([current.tenant.key for current in running.values()])
        self._published = {place: since for place, since in self._published.items() if place in resizes}
        self.close()
        if waits:
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.refresh)
        return tuple(sorted(entries, key=lambda resize: (resize.allocation, resize.share)))

    def close(self) -> None:
        """Cancel the timer. The next `refresh` or `apply` starts it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note_losses(
        self, running: Mapping[_Place, ShareLedger], lost: Mapping[str, ShareLedger], by_id: Mapping[str, Allocation]
    ) -> None:
        """Remember which shares have more than the ledger gives them, in case the GPUNode forgets it."""
        there = (*running.values(), *lost.values())
        self._former_limits = {share.tenant.key: self._former_limits.get(share.tenant.key, 0) for share in there}
        self._lent &= lost.keys()
        self._lent |= {key for key, current in lost.items() if current.outdated}  # unknown, so perhaps
        for (identity, position), current in running.items():
            own_bytes = by_id[identity].shares[position].memory_bytes
            if max(current.tenant.memory_bytes, self._former_limits[current.tenant.key]) > own_bytes:
                self._lent.add(current.tenant.key)

    def _search_orphans(
        self, node: GpuNode, running: Mapping[_Place, ShareLedger], targets: Mapping[_Place, int]
    ) -> None:
        """Search once for orphans of each share that the status says is lent memory, unless this arbiter lent it."""
        there = {
            (entry.id, at): (entry.pod.uid, share)
            for entry in node.allocations
            for at, share in enumerate(entry.shares)
        }
        self._origin_known &= there.keys()
        searched = {}
        for place in node.lent().keys() - self._origin_known:
            uid = running[place].tenant.pod_uid if place in running else there[place][0]
            if uid:  # otherwise the placer has not seen the pod yet
                searched[place] = uid
        if searched:
            self.orphans.search(set(searched.values()))
        self._origin_known |= searched.keys()
        self._origin_known |= {place for place, lent in targets.items() if lent > there[place][1].memory_bytes}

    def _apply_to(self, share: ShareLedger, node: GpuNode, entry: Allocation, target_bytes: int) -> bool:
        """Apply the allocation to one share. Return whether its memory limit is as it should be."""
        most_bytes, has_bytes = tenant.memory_bytes(node, entry, share.tenant.share), share.tenant.memory_bytes
        most_bytes = min(most_bytes, target_bytes)
        counted_bytes = tenant.counted_bytes(node, entry, share.tenant.share)
        # Memory above the ledger's amount may already belong to another share, so it is taken even if it is in use.
        now_bytes = most_bytes if most_bytes >= has_bytes else min(has_bytes, counted_bytes)
        if now_bytes < has_bytes:
            self._former_limits[share.tenant.key] = max(has_bytes, self._former_limits.get(share.tenant.key, 0))
        self._change(share, entry, now_bytes)
        if most_bytes < share.tenant.memory_bytes:
            self._shrink(share, tenant.updated(share.tenant, entry, most_bytes))
        return share.tenant.memory_bytes == most_bytes

    def _change(self, share: ShareLedger, entry: Allocation, memory_bytes: int) -> None:
        renewed = tenant.updated(share.tenant, entry, memory_bytes)
        if renewed == share.tenant:
            return
        # No limit may exceed the record on disk. A decrease applies even if the record cannot be written.
        if not self.ledgers.record(share, renewed) and renewed.memory_bytes > share.tenant.memory_bytes:
            renewed = tenant.updated(share.tenant, entry, share.tenant.memory_bytes)
        if renewed != share.tenant:
            share.update(renewed)
            self.ledgers.publish_timetable()
            self.leases.update(renewed)
            logger.info("Changed the amounts of a share", extra=_log_fields(renewed))

    def _shrink(self, share: ShareLedger, renewed: tenant.Tenant) -> None:
        before = share.tenant
        if share.outdated or not self.measured() or share.held_bytes() > renewed.memory_bytes:
            return
        share.update(renewed)
        if share.held_bytes() > renewed.memory_bytes or not self.ledgers.record(share, renewed):
            share.update(before)
            return
        logger.info("Lowered the memory limit of a share", extra=_log_fields(renewed))

    def _has_loan(
        self, entry: Allocation, position: int, ledger: ShareLedger | None, before: Resize | None, target_bytes: int
    ) -> bool:
        """Whether the share has, or is about to get, more memory than the ledger gives it."""
        share = entry.shares[position]
        # A share that has lost its memory limit keeps what it is lent, and so has to report it, until it uses less.
        if share.memory_limit_bytes is None and (before is None or before.memory_bytes <= share.memory_bytes):
            return False
        if ledger is None:  # its processes may still use an earlier agent's page
            return f"{entry.pod.uid}-{position}" in self.ledgers.unreachable
        return ledger.outdated or max(ledger.tenant.memory_bytes, target_bytes) > share.memory_bytes

    def _unenforced_bytes(
        self, entry: Allocation, position: int, ledger: ShareLedger | None, before: Resize | None
    ) -> int:
        """Return the bytes that the share may hold although none of gpushare's limits allows it; 0 if it does not.

        That is after a loss: of a record, or of a loan, when the GPUNode was restored to an earlier state.
        """
        own_bytes = entry.shares[position].memory_bytes
        said_bytes = before.memory_bytes if before is not None and before.memory_bytes > own_bytes else 0
        if said_bytes and self._is_held_by_orphans(entry, position, ledger):
            return said_bytes
        cut_bytes = self._former_limits.get(ledger.tenant.key, 0) if ledger is not None else 0
        if ledger is None or not (said_bytes or cut_bytes):
            return 0
        if ledger.outdated:  # until then its processes may go by the earlier limit
            return max(said_bytes, cut_bytes)
        held_bytes = ledger.held_bytes()
        if held_bytes <= max(ledger.tenant.memory_bytes, own_bytes):
            self._former_limits[ledger.tenant.key] = 0
            return 0
        return min(held_bytes, MAX_BYTES)

    def _is_held_by_orphans(self, entry: Allocation, position: int, ledger: ShareLedger | None) -> bool:
        """Whether processes without a record may hold what the status says that the share is lent."""
        pod_uid = ledger.tenant.pod_uid if ledger is not None else entry.pod.uid
        return (entry.id, position) not in self._origin_known or self.orphans.may_exist(pod_uid)

    def _orphaned(self, lost: Iterable[ShareLedger], said: Mapping[_Place, Resize]) -> Iterator[Resize]:
        """Yield what shares without an allocation may have been lent.

        A deleted GPUNode comes back without allocations and status. A loan counts as soon as the placer restores
        the allocation, but only if the status says so before.
        """
        for current in lost:
            held, before = current.tenant, said.get((current.tenant.allocation, current.tenant.share))
            if not held.allocation or held.key not in self._lent:
                continue
            is_same = before is not None and before.memory_bytes == held.memory_bytes
            used_bytes = before.used_bytes if is_same and before else min(current.held_bytes(), MAX_BYTES)
            has_bytes = max(held.memory_bytes, self._former_limits[held.key] and min(current.held_bytes(), MAX_BYTES))
            yield Resize(held.allocation, held.share, has_bytes, used_bytes)

    def _resize_status(
        self,
        entry: Allocation,
        position: int,
        ledger: ShareLedger | None,
        before: Resize | None,
        target_bytes: int,
        unenforced_bytes: int,
    ) -> Resize:
        share = entry.shares[position]
        wanted_bytes = target_bytes if share.shrink_to_bytes is None else share.shrink_to_bytes
        if ledger is not None:
            # The limit is below the wanted size for a moment, while the published value is withdrawn. Processes write
            # `used_bytes` themselves: a value above the schema's maximum would make the API server reject the whole
            # status.
            has_bytes = max(ledger.tenant.memory_bytes, wanted_bytes)
            if ledger.outdated and before is not None:  # processes may follow an earlier page
                has_bytes = max(has_bytes, before.memory_bytes)
            used_bytes = min(ledger.held_bytes(), MAX_BYTES)
        elif f"{entry.pod.uid}-{position}" in self.ledgers.unreachable:
            has_bytes = used_bytes = max(share.memory_bytes, before.memory_bytes if before is not None else 0)
        else:  # no processes: new ones get the lower limit
            has_bytes, used_bytes = wanted_bytes, 0
        has_bytes = max(has_bytes, unenforced_bytes)
        if before is None or before.memory_bytes != has_bytes:
            return Resize(entry.id, position, has_bytes, used_bytes)
        # A value that changes all the time is not written every second, and not at all once the resize is done.
        is_new = has_bytes != wanted_bytes and self._is_old(before)
        return dataclasses.replace(before, used_bytes=used_bytes) if is_new else before

    def _is_old(self, said: Resize) -> bool:
        """Whether this value has been published for long enough to update it."""
        place, now = (said.allocation, said.share), self.clock()
        known = self._published.get(place)
        if known is not None and known.said == said:
            return now - known.since >= known.pause_seconds
        is_next = known is not None and known.said.memory_bytes == said.memory_bytes
        pause_seconds = min(MAX_PUBLISHED_SECONDS, 2 * known.pause_seconds) if known and is_next else PUBLISHED_SECONDS
        self._published[place] = _Published(said, now, pause_seconds)
        return False


def _log_fields(renewed: tenant.Tenant) -> dict[str, object]:
    compute = {grant.uuid: f"{grant.request_percent}-{grant.limit_percent} %" for grant in renewed.grants}
    return {
        "pod": {"namespace": renewed.namespace, "name": renewed.pod},
        "containers": list(renewed.containers),
        "memory_bytes": renewed.memory_bytes,
        "compute": compute,
    }
