"""Unschedulable pods: placed, but of no use where they are; which of them to evict, and when. Pure.

What was free when a pod was placed may be taken by the time the scheduler binds it, and a node may go. A pin cannot be
taken back, so only a pod that its owner recreates can be placed again. A Job counts an evicted pod as a failure, and a
workflow may not recreate it, so pods of those get an Event only. What made the pod unschedulable may be there for the
next one too, so the pace for one owner halves each time.

A pod may also name an allocation that another pod holds. Its name may not be known when its share is reserved
(`generateName`), and who reads the id of a share that is not confirmed yet can create a second pod with it that asks
for the same. One of the two holds it, the first to be seen; the other was admitted, holds nothing, and is refused every
GPU call on its node. It has to be told so.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Final

from gpushare.allocation import PodRef
from gpushare.defragmentation import evicting
from gpushare.pod import Controller
from webhook.controllers.touched_nodes import Touched
from webhook.pods.stored_pod import Pod

OWNER_PAUSE_SECONDS: Final = 120.0
MAX_OWNER_PAUSE_SECONDS: Final = 3600.0
MAX_A_MINUTE: Final = 20


def explain_unbound(pod: Pod) -> str:
    """The whole sentence, with what happens next or what to do."""
    words = pod.unschedulable or "it does not say why"
    said = f"was placed on {pod.placed_on}, where the scheduler cannot bind it: {words}"
    if pod.controller is None:
        return f"{said}; a pod that was placed stays: delete and recreate it to have it placed elsewhere"
    owner = f"{pod.controller.kind} {pod.controller.name}"
    if not is_recreated(pod):
        return (
            f"{said}; it is not evicted, because {owner} may take that for a failure or not recreate it: delete the "
            "pod to have it placed elsewhere"
        )
    return f"{said}; it is evicted when the pace allows, so that {owner} recreates it"


def is_recreated(pod: Pod) -> bool:
    """Whether its owner recreates it when it is evicted, and takes no harm."""
    return pod.controller is not None and pod.controller.kind in evicting.RECREATE_WITHOUT_HARM


class UnschedulableSince:
    """Since when each pod is stuck, by our own clock: two clocks are never compared."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._since: dict[str, float] = {}

    def overdue(self, uids: Mapping[str, Pod], *, now: float) -> tuple[list[Pod], float | None]:
        """Those that have been stuck for long enough, of those that are now; and when the next will have been."""
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        due = [uids[uid] for uid, since in self._since.items() if now - since >= self._after_seconds]
        later = [since + self._after_seconds for since in self._since.values() if now - since < self._after_seconds]
        return due, min(later, default=None)


class EvictionRate:
    """How fast pods may be evicted: per owner ever slower, and altogether so many a minute."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[float, float]] = {}  # uid -> not before, the pause after that
        self._recent: collections.deque[float] = collections.deque(maxlen=MAX_A_MINUTE)

    def wait_seconds(self, who: Controller, *, now: float) -> float:
        """How long to wait before evicting one more of this owner's; 0 when now will do."""
        not_before, _ = self._owners.get(who.uid, (now, 0.0))
        minute = self._recent[0] + 60.0 if len(self._recent) == MAX_A_MINUTE else now
        return max(0.0, not_before - now, minute - now)

    def evicted(self, who: Controller, *, now: float) -> None:
        """A pod of this owner was evicted: the next of its pods waits longer."""
        self._recent.append(now)
        kept = {uid: known for uid, known in self._owners.items() if now < known[0] + MAX_OWNER_PAUSE_SECONDS}
        _, pause = kept.get(who.uid, (now, OWNER_PAUSE_SECONDS))
        self._owners = {**kept, who.uid: (now + pause, min(2 * pause, MAX_OWNER_PAUSE_SECONDS))}


class AllocationConflict:
    """Such pods of all nodes, of which only some are looked at again."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[Pod, PodRef]]] = {}  # by node

    def renew(self, touched: Touched) -> list[tuple[Pod, PodRef]]:
        """Such pods, each with who holds what it names; `touched`: since the last time."""
        for name in self._found.keys() & touched.names:
            del self._found[name]
        entries = [(node.name, entry) for node in touched.nodes for entry in node.allocations if entry.pod.uid]
        holders = {entry.id: (name, entry.pod) for name, entry in entries}
        own = {entry.pod.uid for _, entry in entries}
        for pod in touched.pods:
            held = holders.get(pod.allocation_id)
            lives = not pod.leaves and not pod.has_ended and not pod.is_gated
            if held is not None and pod.ref.uid not in own and lives:
                self._found.setdefault(held[0], []).append((pod, held[1]))
        return [conflict for conflicts in self._found.values() for conflict in conflicts]


def explain_conflict(pod: Pod, holder: PodRef) -> str:
    """The sentence for one that nobody recreates."""
    return (
        f"names the allocation {pod.allocation_id}, which {holder} holds: it has no share of its own, and no GPU call "
        f"of it succeeds; delete and recreate it without the annotations that only gpushare writes"
    )
