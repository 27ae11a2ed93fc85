"""The evictor: reports pods that cannot use their placement, and evicts those whose owner recreates them without harm.

By the time the scheduler binds a pod, other pods may use its capacity, and a node selector cannot be changed. A Job
counts an evicted pod as a failure, so its pods get only an Event. The cause may also affect the next pod, so pauses
between evictions of one owner double. A pod may also name an allocation of another pod, by an ID that was read before
its pod was stored (`generateName`): it was admitted, but has no share, and each of its GPU calls fails.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpushare import contract
from gpushare.allocation import PodRef
from gpushare.cluster import api_client, api_errors, events
from gpushare.defragmentation import evicting
from gpushare.pod import Controller
from webhook.controllers.pacing import WriteBackoff
from webhook.controllers.touched_nodes import Touched
from webhook.metrics import Metrics
from webhook.pods.stored_pod import Pod

logger = logging.getLogger(__name__)

AFTER_SECONDS: Final = 60.0
OWNER_PAUSE_SECONDS: Final = 120.0
MAX_OWNER_PAUSE_SECONDS: Final = 3600.0
MAX_PER_MINUTE: Final = 20
SURE_SECONDS: Final = 3.0  # pods and GPUNodes come from two watches, and either may lag


@dataclasses.dataclass(eq=False)
class Evictor:
    """Evicts stuck pods. after_seconds: how long the scheduler may try to bind a pod first."""

    api: api_client.ApiClient
    recorder: events.Recorder
    metrics: Metrics
    _: dataclasses.KW_ONLY
    after_seconds: float = AFTER_SECONDS
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._stuck = UnschedulableSince(self.after_seconds)
        self._conflicts = UnschedulableSince(SURE_SECONDS)
        self._found_conflicts = AllocationConflicts()
        self._rate = EvictionRate()
        self._backoff = WriteBackoff()

    async def reconcile(self, stuck: Iterable[Pod], touched: Touched) -> float | None:
        """Report and evict pods that are due; return in how many seconds the next are. stuck: all unbindable ones."""
        unbound = {pod.ref.uid: pod for pod in stuck}
        self.metrics.stuck(len(unbound))
        why = "it could not be bound where it was placed"
        waits = await self._evict_due(self._stuck, unbound, contract.EVENT_STUCK, explain_unbound, why)
        holders = {pod.ref.uid: (pod, holder) for pod, holder in self._found_conflicts.renew(touched)}
        conflicting = {uid: pod for uid, (pod, _) in holders.items()}
        waits += await self._evict_due(
            self._conflicts,
            conflicting,
            contract.EVENT_LOST,
            lambda pod: explain_conflict(*holders[pod.ref.uid]),
            "another pod holds its share",
        )
        return min(waits, default=None)

    async def _evict_due(
        self, since: UnschedulableSince, pods: Mapping[str, Pod], event: str, explain: Callable[[Pod], str], why: str
    ) -> list[float]:
        """Report pods, and evict them as far as the rate for their owners allows; return the pauses before the others.

        After an unanswered eviction, the round makes no more: each would take as long, and the rest of the round waits.
        """
        now = self.clock()
        due, next_at = since.overdue(pods, now=now)
        waits = [] if next_at is None else [next_at - now]
        for pod in due:
            self.recorder.record(pod.reference, event, explain(pod), type="Warning")
        for pod in due:
            owner, uid = pod.controller, pod.ref.uid
            if owner is None or not is_recreated(pod):
                continue
            now = self.clock()
            wait_seconds = max(self._rate.wait_seconds(owner, now=now), self._backoff.wait_seconds(uid, now=now))
            if wait_seconds > 0:
                waits.append(wait_seconds)
                continue
            evicted = await self._evict(pod, owner, why)
            if evicted:
                self._rate.evicted(owner, now=now)
                self._backoff.succeeded(uid)
            else:
                waits.append(self._backoff.failed(uid, now=self.clock()))
            if evicted is None:
                break
        return waits

    async def _evict(self, pod: Pod, owner: Controller, because: str) -> bool | None:
        """Evict a pod; return whether the API server accepts that. None: the API server, or a webhook that it calls for
        evictions, does not answer. A 429 of a disruption budget is an answer.
        """
        # With the version: a pod that was bound meanwhile must not be evicted.
        body = evicting.eviction(pod.ref.namespace, pod.ref.name, uid=pod.ref.uid, resourceVersion=pod.version)
        try:
            async with asyncio.timeout(10.0):
                await self.api.create(f"{pod.path}/eviction", body)
        except (api_errors.ClusterError, TimeoutError) as error:
            sentence = str(error) or "no answer in time"
            logger.info("Could not evict a stuck pod", extra={"pod": str(pod.ref), "err": sentence})
            is_answer = isinstance(error, api_errors.ClusterError) and (
                not isinstance(error, api_errors.Unavailable) or error.status == 429
            )
            return False if is_answer else None
        self.metrics.replaced()
        logger.warning("Evicted a pod", extra={"pod": str(pod.ref), "owner": owner.name})
        note = f"evicted, because {because}: {owner.kind} {owner.name} recreates it"
        self.recorder.record(pod.reference, contract.EVENT_REPLACED, note, action="Evict")
        return True


def explain_unbound(pod: Pod) -> str:
    words = pod.unschedulable or "no reason given"
    sentence = f"was placed on {pod.placed_on}, where the scheduler cannot bind it: {words}"
    if pod.controller is None:
        return f"{sentence}; a placed pod cannot move: delete and recreate it to have it placed elsewhere"
    owner = f"{pod.controller.kind} {pod.controller.name}"
    if not is_recreated(pod):
        return (
            f"{sentence}; it is not evicted, because {owner} may count that as a failure or not recreate it: delete "
            "the pod to have it placed elsewhere"
        )
    return f"{sentence}; it will be evicted at a limited rate, so that {owner} recreates it"


def is_recreated(pod: Pod) -> bool:
    """Whether the pod's owner recreates it without harm after an eviction."""
    return pod.controller is not None and pod.controller.kind in evicting.RECREATE_WITHOUT_HARM


class UnschedulableSince:
    """The times at which pods got stuck, by our clock, because clocks of two processes are never compared."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._since: dict[str, float] = {}

    def overdue(self, uids: Mapping[str, Pod], *, now: float) -> tuple[list[Pod], float | None]:
        """Return which of these pods have been stuck for long enough, and when the next will have been."""
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        due = [uids[uid] for uid, since in self._since.items() if now - since >= self._after_seconds]
        later = [since + self._after_seconds for since in self._since.values() if now - since < self._after_seconds]
        return due, min(later, default=None)


class EvictionRate:
    """Limits evictions per minute, with growing pauses for each owner."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[float, float]] = {}  # UID -> time of the next eviction, and the pause after that
        self._recent: collections.deque[float] = collections.deque(maxlen=MAX_PER_MINUTE)

    def wait_seconds(self, who: Controller, *, now: float) -> float:
        not_before, _ = self._owners.get(who.uid, (now, 0.0))
        minute = self._recent[0] + 60.0 if len(self._recent) == MAX_PER_MINUTE else now
        return max(0.0, not_before - now, minute - now)

    def evicted(self, who: Controller, *, now: float) -> None:
        self._recent.append(now)
        kept = {uid: known for uid, known in self._owners.items() if now < known[0] + MAX_OWNER_PAUSE_SECONDS}
        _, pause = kept.get(who.uid, (now, OWNER_PAUSE_SECONDS))
        self._owners = {**kept, who.uid: (now + pause, min(2 * pause, MAX_OWNER_PAUSE_SECONDS))}


class AllocationConflicts:
    """Pods that name an allocation of another pod, found again only on nodes that have changed."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[Pod, PodRef]]] = {}  # by node

    def renew(self, touched: Touched) -> list[tuple[Pod, PodRef]]:
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
    return (
        f"names the allocation {pod.allocation_id}, which belongs to {holder}: it has no share, and its GPU calls "
        f"fail; delete and recreate it without the annotations that only gpushare writes"
    )
