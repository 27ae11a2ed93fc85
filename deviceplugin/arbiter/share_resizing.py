"""Keeps what shares are given true to the GPUNode while they run: more at once, less as soon as it is not in use.

Less memory is a promise to the placer, which gives the rest to somebody else. So the limit is lowered first and what is
in use is looked at after, for a process adds to what it holds before it looks at the limit: either it sees the new one
or we see its bytes. It is written down before it is told, so that the next agent knows, and it is told in the GPUNode's
status on the very state of the GPUNode that it answers. What was told is taken back there before a limit is raised
again. At every moment, then, no process goes by a higher limit than the status tells, whoever dies.

While a process goes by a limits page of an earlier agent, which nobody can write, nothing is lowered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.ledgers.share_ledger import ShareLedger
from deviceplugin.arbiter.ledgers.share_ledgers import ShareLedgers
from deviceplugin.arbiter.scheduling.leases import Leases
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode, Resize

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 1.0  # between two looks whether a share can give up memory by now
MAX_BYTES: Final = (1 << 63) - 1  # that the GPUNode's schema lets be
PUBLISHED_SECONDS: Final = (
    10.0  # for so long a figure of what is in use is left as it was told, then for twice as long, …
)
MAX_PUBLISHED_SECONDS: Final = 320.0

_Place = tuple[str, int]  # of a share: its allocation's id, and which one it is


@dataclasses.dataclass(frozen=True, slots=True)
class _Published:
    """What the status says of a share, since when, and for how long it is to stay."""

    said: Resize
    since: float
    pause_seconds: float


class ShareResizer:
    """To be used in a running event loop.

    node: the GPUNode as last seen; tell: to be called when there is something new to be told in its status.
    measured: whether it is known by now what processes hold beyond their charges: before, nothing is lowered.
    """

    def __init__(
        self,
        groups: ShareLedgers,
        leases: Leases,
        *,
        node: Callable[[], GpuNode | None],
        notify: Callable[[], None],
        measured: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups = groups
        self._leases = leases
        self._node = node
        self._notify = notify
        self._measured = measured
        self._clock = clock
        self._published: dict[_Place, _Published] = {}
        self._lost: frozenset[str] = frozenset()  # shares with processes that the ledger does not have
        self._timer: asyncio.TimerHandle | None = None
        groups.on_pages_current = self.refresh

    def refresh(self) -> None:
        """The GPUNode, or what is in use, may have changed."""
        node = self._node()
        if node is not None and self.apply(node) != node.resizes:
            self._notify()

    def apply(self, node: GpuNode) -> tuple[Resize, ...]:
        """Give all shares what they have in this GPUNode; return what its status is to say of it."""
        groups: dict[_Place, ShareLedger] = {}
        lost: dict[str, ShareLedger] = {}
        waits = False
        for group in self._groups.all():
            entry = tenant.find_allocation(group.tenant, node)
            if entry is None:
                lost[group.tenant.key] = group
                continue
            groups[entry.id, group.tenant.share] = group
            waits |= not self._apply_to(group, node, entry)
        self._warn_about_lost(lost)
        resizes = {(resize.allocation, resize.share): resize for resize in node.resizes}
        entries = []
        for entry in node.allocations:
            for position, share in enumerate(entry.shares):
                if share.shrink_to_bytes is not None:
                    place = (entry.id, position)
                    said = self._resize_status(entry, position, groups.get(place), resizes.get(place))
                    waits |= said.memory_bytes > share.shrink_to_bytes
                    entries.append(said)
        self._published = {place: since for place, since in self._published.items() if place in resizes}
        self.close()
        if waits:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.refresh)
        return tuple(sorted(entries, key=lambda resize: (resize.allocation, resize.share)))

    def close(self) -> None:
        """Cancel the next look; nothing is resized until `look` is called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _apply_to(self, share: ShareLedger, node: GpuNode, entry: Allocation) -> bool:
        """Whether it has all that it is to have, and no more."""
        most_bytes, has_bytes = tenant.memory_bytes(node, entry, share.tenant.share), share.tenant.memory_bytes
        counted_bytes = entry.shares[share.tenant.share].memory_bytes
        # What is above what the ledger counts may be somebody else's already: that goes without asking.
        now_bytes = most_bytes if most_bytes >= has_bytes else min(has_bytes, counted_bytes)
        self._change(share, tenant.updated(share.tenant, entry, now_bytes))
        if most_bytes < share.tenant.memory_bytes:
            self._shrink(share, tenant.updated(share.tenant, entry, most_bytes))
        return share.tenant.memory_bytes == most_bytes

    def _change(self, share: ShareLedger, renewed: tenant.Tenant) -> None:
        if renewed == share.tenant:
            return
        # Nobody may go by more than what is written down; less holds also if that is not possible.
        if not self._groups.record(share, renewed) and renewed.memory_bytes > share.tenant.memory_bytes:
            renewed = tenant.with_memory(renewed, share.tenant.memory_bytes)
        if renewed != share.tenant:
            share.update(renewed)
            self._groups.publish_timetable()
            self._leases.update(renewed)
            logger.info("Changed what a share is given", extra=_named(renewed))

    def _shrink(self, share: ShareLedger, renewed: tenant.Tenant) -> None:
        before = share.tenant
        if share.outdated or not self._measured() or share.held_bytes() > renewed.memory_bytes:
            return
        share.update(renewed)
        if share.held_bytes() > renewed.memory_bytes or not self._groups.record(share, renewed):
            share.update(before)
            return
        logger.info("Lowered the memory limit of a share", extra=_named(renewed))

    def _resize_status(
        self, entry: Allocation, position: int, group: ShareLedger | None, before: Resize | None
    ) -> Resize:
        share = entry.shares[position]
        wanted_bytes = share.shrink_to_bytes or 0
        if group is not None:
            # Below what is wanted it is for a moment, while what was told before is taken back.
            # Programs write their own figures: what no GPU has would be refused, and the whole status with it.
            has_bytes = max(group.tenant.memory_bytes, wanted_bytes)
            used_bytes = min(group.held_bytes(), MAX_BYTES)
        elif self._groups.is_unreachable(entry.pod.uid, position):
            has_bytes = used_bytes = share.memory_bytes
        else:  # no process has it; those that come will find the lower limit
            has_bytes, used_bytes = wanted_bytes, 0
        if before is None or before.memory_bytes != has_bytes:
            return Resize(entry.id, position, has_bytes, used_bytes)
        # A figure that is always another one is not to be written every second; once it is done, nobody needs it.
        is_new = has_bytes != wanted_bytes and self._is_old(before)
        return dataclasses.replace(before, used_bytes=used_bytes) if is_new else before

    def _is_old(self, said: Resize) -> bool:
        """Whether a figure was told for long enough."""
        place, now = (said.allocation, said.share), self._clock()
        known = self._published.get(place)
        if known is not None and known.said == said:
            return now - known.since >= known.pause_seconds
        is_next = known is not None and known.said.memory_bytes == said.memory_bytes
        pause_seconds = min(MAX_PUBLISHED_SECONDS, 2 * known.pause_seconds) if known and is_next else PUBLISHED_SECONDS
        self._published[place] = _Published(said, now, pause_seconds)
        return False

    def _warn_about_lost(self, lost: Mapping[str, ShareLedger]) -> None:
        for key, share in lost.items():
            if key not in self._lost:
                logger.warning(
                    "The ledger does not have a share that processes use: they keep what they had",
                    extra=_named(share.tenant),
                )
        self._lost = frozenset(lost)


def _named(renewed: tenant.Tenant) -> dict[str, object]:
    compute = {grant.uuid: f"{grant.request_percent}-{grant.limit_percent} %" for grant in renewed.grants}
    return {
        "pod": {"namespace": renewed.namespace, "name": renewed.pod},
        "containers": list(renewed.containers),
        "memory_bytes": renewed.memory_bytes,
        "compute": compute,
    }
