"""The history of placeholders that the API server does not keep: idle times, lost placeholders, and useless GPUs.

The kubelet chooses the GPU of a placeholder. If no pod that waits can use it, the next placeholder may get it again. So
the placer pauses before it asks that node again, twice as long each time, until a share uses a placeholder's GPU. A
new leader starts without a history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from gpushare import borrowing
from gpushare.borrowing import Placeholder
from gpushare.gpunode import GpuNode

MAX_PAUSE_SECONDS: Final = 900.0


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """The time until which no GPU of a node is requested; `reason`: a clause."""

    until: float
    seconds: float
    reason: str


class BorrowHistory:
    """Times are seconds on the placer's clock, apart from `exposed_since`, which is Unix time."""

    def __init__(self, first_pause_seconds: float) -> None:
        self._first_pause_seconds = first_pause_seconds
        self._idle_since: dict[str, float] = {}  # by UID of a placeholder
        self._without_ledger_since: dict[str, float] = {}  # by UID of a placeholder
        self._awaits_agent_since: dict[str, float] = {}  # by UID of a placeholder
        self._used: set[str] = set()  # UIDs of placeholders whose GPU has had a share
        self._asked: dict[str, str] = {}  # by UID of a pod that still lacks room, the node that a GPU was asked for
        self._exposed_since: dict[str, float] = {}  # by node
        self._pauses: dict[str, Pause] = {}  # by node

    def observe(
        self, node: GpuNode, here: Collection[Placeholder], kept: Collection[str], *, now: float, wall_time: float
    ) -> None:
        """Record what a node's placeholders are used for; kept: UUIDs that pods need."""
        idle = {one.uid for one in borrowing.idle(node, here, kept)}
        for one in here:
            self._without_ledger_since.pop(one.uid, None)
            if one.uid in idle:
                self._idle_since.setdefault(one.uid, now)
            else:
                self._idle_since.pop(one.uid, None)
            if borrowing.awaits_agent(node, one):
                self._awaits_agent_since.setdefault(one.uid, now)
            else:
                self._awaits_agent_since.pop(one.uid, None)
        used = borrowing.used_gpus(node)
        new = {gpu.owner for gpu in node.gpus if gpu.uuid in used} & {one.uid for one in here} - self._used
        if new and not node.unread:
            self._used |= new
            self._pauses.pop(node.name, None)
        if borrowing.exposed(node, here):
            self._exposed_since.setdefault(node.name, wall_time)
        else:
            self._exposed_since.pop(node.name, None)

    def without_ledger(self, uid: str, *, now: float) -> float:
        """Return since when a placeholder has been seen on a node without a GPUNode."""
        return self._without_ledger_since.setdefault(uid, now)

    def awaits_agent(self, uid: str, *, now: float, seconds: float) -> bool:
        """Whether the agent of the placeholder's node has not acted for so long."""
        return now - self._awaits_agent_since.get(uid, now) >= seconds

    def forget_except(self, there: Iterable[Placeholder]) -> None:
        """Forget placeholders that are gone."""
        known = {one.uid for one in there}
        for times in (self._idle_since, self._without_ledger_since, self._awaits_agent_since):
            for uid in times.keys() - known:
                del times[uid]
        self._used &= known

    def asked(self, asked: Mapping[str, str], lacking: Collection[str]) -> None:
        """Record which node a GPU is asked for, by UID of the pod; lacking: the UIDs of all pods that lack room."""
        self._asked = {uid: node for uid, node in (self._asked | dict(asked)).items() if uid in lacking}

    def idle_long(self, here: Iterable[Placeholder], *, now: float, seconds: float) -> set[str]:
        """Return the UIDs of the placeholders whose GPU has been idle for so long."""
        return {one.uid for one in here if now - self._idle_since.get(one.uid, now + seconds + 1.0) >= seconds}

    def gave_back(self, node: GpuNode, placeholders: Sequence[Placeholder], *, now: float) -> None:
        """Pause requests to a node if its returned GPUs were never used, though pods or shares still need one."""
        useless = [one for one in placeholders if one.uid not in self._used]
        if not useless or not (node.name in self._exposed_since or node.name in self._asked.values()):
            return
        before = self._pauses.get(node.name)
        seconds = min(2 * before.seconds if before is not None else self._first_pause_seconds, MAX_PAUSE_SECONDS)
        uid = useless[0].uid
        reason = borrowing.fault(node, uid) or borrowing.given(node, uid, "no pod that waits can use")
        self._pauses[node.name] = Pause(now + seconds, seconds, reason)

    def pause(self, node: str, *, now: float) -> str:
        """Return why no GPU of the node is asked for now, as a clause; empty if one may be."""
        pause = self._pauses.get(node)
        return pause.reason if pause is not None and now < pause.until else ""

    def to_replace(self, node: GpuNode, here: Collection[Placeholder], *, free: int, now: float) -> int:
        """Return how many placeholders to ask for, for GPUs that have shares and no placeholder any more."""
        since = self._exposed_since.get(node.name)
        if since is None or self.pause(node.name, now=now):
            return 0
        return borrowing.to_replace(node, here, free=free, since=since)
