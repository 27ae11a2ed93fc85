"""The scheduler of gated pods: places them in order while there is room, ungates them, and reports why others wait.

If the placer ends between two writes, the next one finds shares and backfill reservations by the UID of gated pods. A
gang that does not fit keeps nothing, and gangs are placed one at a time, so two cannot wait for each other. Its shares
are tentative until all are in the ledger, and settled before the first pod is ungated. Only tentative shares are
released again: one write of one object decides, also with two placers. The exception is a pod that the API server does
not let us ungate, or that no longer asks for what it was given: it is surely gated, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from gpushare import contract, errors, ledger
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook.controllers import pacing, queue
from webhook.controllers.gated_pods import gang_placement, waiting_units
from webhook.controllers.gated_pods.backfill_reservations import BackfillReservations
from webhook.controllers.gated_pods.fairness import DEFAULT_LIMITS, Fairness, OvertakeCounter, OvertakeLimits
from webhook.controllers.gated_pods.gang_placement import GangPlacement, PodRequests
from webhook.controllers.gated_pods.ungater import Ungater
from webhook.controllers.gated_pods.waiting_units import (
    AllocationHolders,
    AllocationIds,
    Arranged,
    ExistingAllocations,
    PodIndex,
    Unit,
)
from webhook.controllers.pending_reasons import EventRecorder, PendingReasonReporter, PodClient
from webhook.metrics import Metrics
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store
from webhook.store.ledger_store import FilteredStore
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

Refusals = list[tuple[Pod, Refusal]]

MAX_CONCURRENT: Final = 32  # pods placed at a time
SKIPPED_AT_ONCE: Final = 1024  # before the event loop runs other tasks
NEXT_ROUND_SECONDS: Final = 2.0  # after a round that skipped units
_SKIPPED: Final = "other pods of its namespace are tried first: its turn comes soon"


@dataclasses.dataclass(frozen=True, slots=True)
class _Round:
    """The state of a round."""

    existing: ExistingAllocations  # of gated pods at its begin, without reservations that it has released
    waiting: Refusals  # pods that go on waiting, and why
    refused: dict[str, Refusal] = dataclasses.field(default_factory=dict)  # by kind: why no pod of this kind fits


@dataclasses.dataclass(eq=False)
class GatedPodScheduler:
    """Gives each unit of gated pods its turn. `overtakes` counts the pods that overtake waiting units.

    make_room: makes room for pods that wait; returns them, with what is done for each. preempts: whether that may be an
    eviction.
    """

    api: PodClient
    store: ledger_store.LiveLedger
    reservation: Reservation
    recorder: EventRecorder
    metrics: Metrics
    _: dataclasses.KW_ONLY
    limits: OvertakeLimits = DEFAULT_LIMITS
    make_room: Callable[[Refusals], Awaitable[Refusals]] | None = None
    preempts: bool = False
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._gang = GangPlacement(self.store, self.reservation)
        self._ungater = Ungater(self.api, self.recorder, self.metrics, clock=self.clock)
        self._reporter = PendingReasonReporter(self.api, self.recorder, clock=self.clock)
        self._arranger = waiting_units.Arranger()
        self._holders = AllocationHolders()
        self.overtakes = OvertakeCounter()
        self._backfill = BackfillReservations(self.store, self.overtakes, self.limits, self.preempts)
        self._fairness = Fairness()
        self._last: dict[str, Refusal] = {}  # by UID of the pod
        self.has_skipped = False  # whether the last round left work for another one soon
        self._namespaces: frozenset[str] = frozenset()  # of the units of this round
        self._is_cut = False  # whether this round ends early, for a pod of another namespace
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    def pod_created(self, pod: Pod) -> None:
        """Cut the round short if the new pod waits and its namespace has no turn in this round."""
        self._is_cut |= pod.waits and pod.ref.namespace not in self._namespaces

    async def reconcile(self, pods: PodIndex) -> float | None:
        """Do a round and report the reasons; return in how many seconds the next is due, None without a deadline."""
        now = self.wall_clock()
        waiting = await self.place(pods, now=now)
        self.metrics.waiting(
            queue.counts(waiting), longest_seconds=queue.longest_seconds((pod for pod, _ in waiting), now=now)
        )
        await pacing.let_others_run()
        if self.make_room is not None:
            waiting = await self.make_room(waiting)
            self.has_skipped |= any(refusal.cause is Cause.PREEMPTS for _, refusal in waiting)
        next_report = await self._reporter.report([(pod, refusal.reason) for pod, refusal in waiting])
        waits = [next_report, self._ungater.next_attempt_seconds(), NEXT_ROUND_SECONDS if self.has_skipped else None]
        return min((seconds for seconds in waits if seconds), default=None)

    async def place(self, pods: PodIndex, *, now: float) -> Refusals:
        """Give each unit one turn; return the pods that go on waiting, and why. `now` in Unix seconds."""
        arranged = self._arranger.arrange(pods.waiting, pods.members, ungated=self._ungater.ungated(pods.waiting))
        gated = {uid for unit in arranged.units for uid in unit.uids} | {pod.ref.uid for pod, _ in arranged.held_back}
        self._reporter.forget_all_but(gated)
        self._ungater.forget_all_but(gated)
        await pacing.let_others_run()  # each of these steps takes a while with very many pods
        existing = self._holders.existing(self.store.stored(), arranged)
        await pacing.let_others_run()
        self._backfill.begin(pods, arranged.units, existing, now=now)
        await pacing.let_others_run()
        turn = _Round(existing, await self._continue_held_back(arranged, existing))
        skipped = False
        self._namespaces = frozenset(unit.namespace for unit in arranged.units)
        self._is_cut, begun = False, set[str]()
        async with asyncio.TaskGroup() as tasks:
            for unit in self._fairness.begin(arranged.units):
                is_cut = self._is_cut and len(begun) == len(self._namespaces)  # after a turn for each namespace
                begun.add(unit.namespace)
                if not existing.has_any(unit) and (is_cut or not self._fairness.may_try(unit)):
                    for pod in unit.pods:
                        reason = pod.annotations.get(contract.REASON) or _SKIPPED  # the same needs no status write
                        last = self._last.get(pod.ref.uid)
                        turn.waiting.append((pod, last or Refusal(reason, cause=Cause.TURN)))
                    skipped = True
                    if len(turn.waiting) % SKIPPED_AT_ONCE == 0:
                        await pacing.let_others_run()
                    continue
                requests = _requests(unit, turn.waiting)
                if requests is None:
                    await self._give_up(unit, existing)
                    continue
                if unit.group:
                    await self._place_gang(unit, requests, turn)
                    continue
                await self._slots.acquire()
                task = tasks.create_task(self._place_pod(unit, *requests[0], turn))
                task.add_done_callback(lambda _: self._slots.release())
                # The task runs until its share is in our view, before the next begins: the order of the queue is kept.
                await (task if unit.used_nodes else asyncio.sleep(0))
        await pacing.let_others_run()
        self._last = {pod.ref.uid: refusal for pod, refusal in turn.waiting if refusal.cause is not Cause.TURN}
        self.has_skipped = skipped
        return turn.waiting

    async def _continue_held_back(self, arranged: Arranged, existing: ExistingAllocations) -> Refusals:
        """Release what pods without a turn have, and ungate those whose gang was placed; return why they wait."""
        back = [pod for pod, _ in arranged.held_back]
        reserving = {pod.ref.uid for pod in back if existing.reserved.pop(pod.ref.uid, None)}
        await self._release([pod for pod in back if pod.ref.uid in existing.shares], reserving=reserving)
        failed = await self._ungate_settled(back, existing)
        reasons = {
            pod.ref.uid: Refusal(sentence, cause=Cause.GATE if pod.foreign_gates else Cause.GROUP)
            for pod, sentence in arranged.held_back
        }
        return [(pod, failed.get(pod.ref.uid) or reasons[pod.ref.uid]) for pod in back]

    async def _place_pod(self, unit: Unit, pod: Pod, request: Request, turn: _Round) -> None:
        outcome: mutation.Placed | Refusal | None = self._existing_share(pod, turn.existing)
        in_backoff = self._ungater.backoff_reason(pod)
        if in_backoff is not None:
            await self._keep_gated(unit, [(pod, in_backoff)], turn, has_share=outcome is not None)
            return
        if outcome is None:
            outcome = await self._reserve(unit, pod, request, turn)
        if isinstance(outcome, Refusal):
            suffix = await self._backfill.reserve(unit, ((pod, request),), turn.existing)
            turn.waiting.append((pod, dataclasses.replace(outcome, reason=outcome.reason + suffix)))
        elif (failed := await self._ungate(pod, request, outcome)) is not None:
            await self._keep_gated(unit, [(pod, failed)], turn)

    async def _reserve(self, unit: Unit, pod: Pod, request: Request, turn: _Round) -> mutation.Placed | Refusal:
        """Reserve what is free, or reserved for this unit or units behind it, unless its kind was refused."""
        kind = f"{queue.kind(pod)}{pod.ref.uid if self.store.chooser.avoided(pod.manifest).blocked else ''}"
        own, own_and_behind = turn.existing.reserved_for(unit), turn.existing.reserved_from(unit)
        if not own and kind in turn.refused:
            return turn.refused[kind]
        nodes = await self._gang.preferred([(pod, request)], own, unit.used_nodes) if unit.used_nodes else {}
        preferred = nodes.get(pod.ref.uid, "")
        outcome = await self._ignoring(own).reserve(pod.manifest, request, pod.ref, preferred=preferred)
        if isinstance(outcome, Refusal) and own_and_behind != own:
            outcome = await self._ignoring(own_and_behind).reserve(pod.manifest, request, pod.ref)
        if isinstance(outcome, Refusal):
            self._fairness.count_failed_try(unit)
            outcome = self._explain(pod, request, outcome, turn.existing)
            if outcome.cause is not Cause.LEDGER:  # such a refusal is about this pod or one write, and not about room
                turn.refused.setdefault(kind, outcome)
        return outcome

    async def _place_gang(self, unit: Unit, requests: PodRequests, turn: _Round) -> None:
        shares = {
            pod.ref.uid: share for pod in unit.pods if (share := self._existing_share(pod, turn.existing)) is not None
        }
        missing = [(pod, request) for pod, request in requests if pod.ref.uid not in shares]
        in_backoff = [(pod, why) for pod, _ in missing if (why := self._ungater.backoff_reason(pod)) is not None]
        if in_backoff:
            await self._keep_gated(unit, _for_gang(unit, *in_backoff[0]), turn, has_share=bool(shares))
            return
        outcomes = await self._reserve_gang(unit, missing, shares, turn)
        refused = [(pod, outcome) for pod, _ in missing if isinstance(outcome := outcomes.get(pod.ref.uid), Refusal)]
        placed = shares | {uid: share for uid, share in outcomes.items() if isinstance(share, mutation.Placed)}
        if not refused:
            left = ((pod, outcomes.get(pod.ref.uid)) for pod in unit.joiners)
            turn.waiting.extend((pod, why) for pod, why in left if isinstance(why, Refusal))
            joined = [asked for asked in gang_placement.valid(unit.joiners) if asked[0].ref.uid in placed]
            unit = dataclasses.replace(unit, joiners=tuple(pod for pod, _ in joined))
            await self._ungate_gang(unit, [*requests, *joined], placed, turn)
            return
        await self._release([pod for pod in unit.pods if pod.ref.uid in placed])
        suffix = await self._backfill.reserve(unit, requests, turn.existing)
        pod, why = refused[0]
        turn.waiting.extend(_for_gang(unit, pod, dataclasses.replace(why, reason=why.reason + suffix)))

    async def _reserve_gang(
        self, unit: Unit, missing: PodRequests, shares: Mapping[str, mutation.Placed], turn: _Round
    ) -> Mapping[str, mutation.Placed | Refusal]:
        """Reserve shares for the pods without one; return them by UID, or the refusal of one pod.

        Joiners that do not fit next to the others are refused as well.
        """
        own, own_and_behind = turn.existing.reserved_for(unit), turn.existing.reserved_from(unit)
        ignored = own
        refused = await self._gang.try_all(missing, ignored)
        if refused is not None and own_and_behind != own:
            ignored = own_and_behind
            refused = await self._gang.try_all(missing, ignored)
        if refused is not None:
            self._fairness.count_failed_try(unit)
            pod, why = refused
            return {pod.ref.uid: why}
        joining = [pod for pod in unit.joiners if pod.ref.uid not in shares]
        left = {pod.ref.uid: reason for pod in joining if (reason := self._cannot_join(pod)) is not None}
        joiners = gang_placement.valid(pod for pod in joining if pod.ref.uid not in left)
        if joiners:
            left |= await self._gang.refused_joiners(missing, joiners, ignored)
            missing = [*missing, *(asked for asked in joiners if asked[0].ref.uid not in left)]
        used_nodes = [*unit.used_nodes, *(share.node for share in shares.values())]
        preferred = await self._gang.preferred(missing, ignored, used_nodes)
        if preferred and await self._gang.try_all(missing, ignored, preferred) is not None:
            preferred = {}  # the gang fits, but not on these nodes
        return {**left, **await self._gang.reserve(missing, ignored, preferred)}

    def _cannot_join(self, pod: Pod) -> Refusal | None:
        if isinstance(pod.request, str):
            return Refusal(pod.request, cause=Cause.REQUEST)
        return self._ungater.backoff_reason(pod)

    async def _ungate_gang(
        self, unit: Unit, requests: PodRequests, placed: Mapping[str, mutation.Placed], turn: _Round
    ) -> None:
        """Settle the shares of all pods, then ungate them. If this placer ends meanwhile, the next ungates the rest."""
        if not await self._gang.settle(placed.values()):
            sentence = "its share could not be made permanent in the ledger yet: the placer retries"
            turn.waiting.extend(_for_gang(unit, requests[0][0], Refusal(sentence, cause=Cause.LEDGER)))
            return
        outcomes = await asyncio.gather(*(self._ungate(pod, request, placed[pod.ref.uid]) for pod, request in requests))
        failed = [(pod, why) for (pod, _), why in zip(requests, outcomes, strict=True) if why is not None]
        if failed:
            none_runs = len(failed) == len(requests) >= requests[0][1].group_size.least
            await self._keep_gated(unit, failed, turn, has_share=none_runs)
        warning = waiting_units.explain_apart(unit.group, list(placed.values()))
        for (pod, _), why in zip(requests, outcomes, strict=True):
            if warning and why is None:
                self.recorder.record(pod.reference, contract.EVENT_GROUP_APART, warning, type="Warning")

    async def _ungate(self, pod: Pod, request: Request, placed: mutation.Placed) -> Refusal | None:
        why = await self._ungater.ungate(pod, request, placed)
        if why is None:
            self.overtakes.placed(pod)
        return why

    async def _ungate_settled(self, pods: Iterable[Pod], existing: ExistingAllocations) -> dict[str, Refusal]:
        """Ungate pods whose share is permanent, although their gang is incomplete; return failures by UID."""
        failed: dict[str, Refusal] = {}
        for pod in pods:
            entry, request = existing.shares.get(pod.ref.uid), pod.request
            placed = self._existing_share(pod, existing)
            is_settled = entry is not None and entry.allocation.reserved_until is None
            if is_settled and placed and isinstance(request, Request):
                why = await self._ungate(pod, request, placed)
                if why is not None:
                    failed[pod.ref.uid] = why
        return failed

    async def _keep_gated(self, unit: Unit, failed: Refusals, turn: _Round, *, has_share: bool = True) -> None:
        """Report members that could not be ungated. If the API server rejects that for all of them, release all shares.

        If other members of the gang run, the shares are kept: without them these members would have waited for nothing.
        """
        turn.waiting.extend(failed)
        reserving = [uid for uid in unit.uids if turn.existing.reserved.pop(uid, None)]
        is_refused = has_share and all(why.cause is Cause.REFUSED for _, why in failed)
        if is_refused or reserving:
            await self._release([pod for pod, _ in failed] if is_refused else (), reserving=reserving, settled=True)

    async def _give_up(self, unit: Unit, existing: ExistingAllocations) -> None:
        """Release what a unit with an invalid request has; its other members keep settled shares, and are ungated."""
        having = [pod for pod in unit.members if pod.ref.uid in existing.shares]
        reserving = [uid for uid in unit.uids if existing.reserved.pop(uid, None)]
        invalid = [pod for pod in having if isinstance(pod.request, str)]
        if having or reserving:
            await self._release(having, reserving=reserving)
            await self._release(invalid, settled=True)
            await self._ungate_settled([pod for pod in having if isinstance(pod.request, Request)], existing)

    async def _release(
        self, sharing: Collection[Pod], *, reserving: Collection[str] = (), settled: bool = False
    ) -> None:
        """Release tentative shares of gated pods, with `settled` all, and backfill reservations (`reserving`: UIDs)."""
        if not sharing and not reserving:
            return
        gated = await self._ungater.confirm_gated(sharing) if sharing else set[str]()

        def is_due(entry: Allocation) -> bool:
            if entry.is_backfill_reservation:
                return entry.pod.uid in reserving
            return entry.pod.uid in gated and (settled or entry.reserved_until is not None)

        def change(node: GpuNode) -> GpuNode:
            ids = [entry.id for entry in node.allocations if is_due(entry)]
            return ledger.release(node, ids) if ids else node

        nodes = [view.node.name for view in self.store.views() if change(view.node) is not view.node]
        for name in nodes if gated or reserving else ():
            # If that fails, the next round finds them again.
            await ledger_store.try_commit(self.store, name, change, "Could not release a gated pod's share")

    def _existing_share(self, pod: Pod, existing: ExistingAllocations) -> mutation.Placed | None:
        """Return the share that a former placer, or a write whose answer was lost, has given to the pod."""
        entry = existing.shares.get(pod.ref.uid)
        if entry is None:
            return None
        hostname = self.store.chooser.hostname(entry.node)
        allocation = entry.allocation
        return mutation.Placed(allocation.id, entry.node, hostname, allocation.shares, allocation.labels.isolation)

    def _ignoring(self, ids: AllocationIds) -> Reservation:
        return self.reservation.on(FilteredStore(self.store, ids)) if ids else self.reservation

    def _explain(self, pod: Pod, request: Request, refusal: Refusal, existing: ExistingAllocations) -> Refusal:
        """Return the refusal, or for which pod this one waits if only backfill reservations are in its way."""
        if not existing.reserved:
            return refusal
        reserved = [entry for entries in existing.reserved.values() for entry in entries]
        placed = self._ignoring(waiting_units.by_node(reserved)).plan(pod.manifest, request)
        if isinstance(placed, Refusal):
            return refusal
        other = next((str(entry.allocation.pod) for entry in reserved if entry.node == placed.node), "other pods")
        return Refusal(
            f"gives way to {other}, for which freed capacity on {placed.node} is reserved; {refusal.reason}",
            refusal.rejected,
            Cause.HOLD,
        )


def _requests(unit: Unit, waiting: Refusals) -> PodRequests | None:
    requests = []
    for pod in unit.members:
        if isinstance(pod.request, str):
            waiting += _for_gang(unit, pod, Refusal(pod.request, cause=Cause.REQUEST))
            return None
        requests.append((pod, pod.request))
    return gang_placement.largest_first(requests)


def _for_gang(unit: Unit, pod: Pod, refusal: Refusal) -> Refusals:
    """Return the refusal of one member, and for the others that they wait for it."""
    refusal = dataclasses.replace(refusal, together=len(unit.members))
    reason = f"its group {errors.quoted(unit.group)} waits for {pod.ref.name}: {refusal.reason}"
    others = dataclasses.replace(refusal, reason=reason)
    return [(member, refusal if member is pod else others) for member in unit.pods]
