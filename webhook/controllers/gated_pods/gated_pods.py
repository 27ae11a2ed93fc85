"""The scheduler of gated pods: places them in order while there is room, and reserves for those passed over.

Here is decided and written to the ledger; gates are opened, and reasons told, by `gates`. Whatever ends us between two
writes leaves shares and holds that belong to gated pods, by uid: the next placer finds them and goes on from there.
A gang that does not fit keeps nothing while it waits, and one is placed at a time, so no two can wait for each other.

The shares of a gang are tentative until all are in the ledger, and settled before the first gate is opened. Only what
is tentative is ever taken back: whether a share is used or given up is decided by one write of one object, also when
two placers are at work, or a write of one that leads no more arrives late. But where the API server refuses to open the
gate, or the pod no longer asks for what it was given: then it is surely gated, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from gpushare import contract, errors, ledger
from gpushare.allocation import peak
from gpushare.gpunode import GpuNode
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook import event_loop
from webhook.controllers import queue
from webhook.controllers.gated_pods import backfill, gang
from webhook.controllers.gated_pods.backfill_reservations import BackfillReservations
from webhook.controllers.gated_pods.existing_allocations import AllocationHolders, ExistingAllocations, Gone
from webhook.controllers.gated_pods.fairness import Fairness
from webhook.controllers.gated_pods.gang import Arranged, Unit
from webhook.controllers.gated_pods.gang_reservation import Asks, GangReservation
from webhook.controllers.gated_pods.pod_index import PodIndex
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import draft, ledger_store
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

Refusals = list[tuple[Pod, Refusal]]
Opens = Callable[[Pod, Request, mutation.Placed], Awaitable[Refusal | None]]
Shut = Callable[[Pod], Refusal | None]
Warns = Callable[[Pod, str], None]
StillGated = Callable[[Collection[Pod]], Awaitable[Collection[str]]]

PLACED_AT_ONCE: Final = 32
LATER_AT_ONCE: Final = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class _Round:
    """What a round knows, and what it finds out.

    existing: shares and holds of gated pods at its begin; holds that are given up leave it. refused: by kind of pod
    why nothing fits one of them. waiting: who goes on waiting, and why.
    """

    existing: ExistingAllocations
    waiting: Refusals
    refused: dict[str, Refusal] = dataclasses.field(default_factory=dict)


class GatedPodScheduler:
    """Gives every unit its turn.

    passes: told of each pod that is placed. opens: called for a pod whose share is in the ledger; returns why its gate
    cannot be opened, and the cause REFUSED if it keeps no share for it. shut: whether that is not to be tried now, and
    why. warns: told what a placed pod's user should know. still_gated: of some pods the uids of those that have surely
    not been opened; asked before the share of one is taken back.
    """

    def __init__(
        self,
        ledger_now: ledger_store.LiveLedger,
        reservation: Reservation,
        passes: backfill.Passes,
        *,
        opens: Opens,
        still_gated: StillGated,
        shut: Shut = lambda _: None,
        warns: Warns = lambda *_: None,
        bound: backfill.Bound = backfill.DEFAULT,
    ) -> None:
        self._store = ledger_now
        self._reservation = reservation
        self._gang = GangReservation(ledger_now, reservation)
        self._opens = opens
        self._still_gated = still_gated
        self._shut = shut
        self._warns = warns
        self._holders = AllocationHolders()
        self._passes = passes
        self._holding = BackfillReservations(ledger_now, passes, bound)
        self._fairness = Fairness()
        self._last: dict[str, Refusal] = {}  # by uid of the pod
        self.is_behind = False  # whether the last round left somebody out
        self._here: frozenset[str] = frozenset()  # namespaces of the round that is under way
        self._is_cut = False
        self._slots = asyncio.Semaphore(PLACED_AT_ONCE)

    def came(self, namespace: str) -> None:
        """A pod waits since now; if nobody of its namespace has a turn in this round, the next is to come soon."""
        self._is_cut |= namespace not in self._here

    async def take(self, pods: PodIndex, arranged: Arranged, *, now: float) -> Refusals:
        """One turn for each unit; return who goes on waiting, and why. `now` in Unix seconds."""
        waiting = [(pod, _held_back(pod, sentence)) for pod, sentence in arranged.held_back]
        existing = self._holders.existing(self._store.stored(), arranged)
        await event_loop.let_others_run()  # with very many, each of these takes a while
        self._holding.begin(pods, arranged.units, existing, now=now)
        await event_loop.let_others_run()
        back = [pod for pod, _ in arranged.held_back]
        holders = {pod.ref.uid for pod in back if existing.holds.pop(pod.ref.uid, None)}
        await self._give_back([pod for pod in back if pod.ref.uid in existing.shares], holders=holders)
        opened = await self._open_settled(back, existing)
        turn = _Round(existing, [(pod, opened.get(pod.ref.uid, refusal)) for pod, refusal in waiting])
        behind = False
        self._here = frozenset(unit.namespace for unit in arranged.units)
        self._is_cut, begun = False, set[str]()
        async with asyncio.TaskGroup() as tasks:
            for unit in self._fairness.begin(arranged.units):
                is_cut = self._is_cut and len(begun) == len(self._here)  # everybody here has had a turn in this round
                begun.add(unit.namespace)
                if not self._has(unit, existing) and (is_cut or not self._fairness.may_try(unit)):
                    turn.waiting.extend((pod, self._last.get(pod.ref.uid) or _later(pod)) for pod in unit.members)
                    behind = True
                    if len(turn.waiting) % LATER_AT_ONCE == 0:
                        await event_loop.let_others_run()
                    continue
                asks = _asks(unit, turn.waiting)
                if asks is None:
                    await self._give_up(unit, existing)
                    continue
                if unit.group:
                    await self._take_together(unit, asks, turn)
                    continue
                await self._slots.acquire()
                task = tasks.create_task(self._take_one(unit, *asks[0], turn))
                task.add_done_callback(lambda _: self._slots.release())
                # It runs until its share is in our view, before the next is placed: the queue's order is kept.
                await asyncio.sleep(0)
        await event_loop.let_others_run()
        self._last = {pod.ref.uid: refusal for pod, refusal in turn.waiting if refusal.cause is not Cause.TURN}
        self.is_behind = behind
        return turn.waiting

    def _has(self, unit: Unit, existing: ExistingAllocations) -> bool:
        """Whether it has something in the ledger: that is gone on with in every round."""
        return any(uid in existing.shares or uid in existing.holds for uid in unit.uids)

    async def _take_one(self, unit: Unit, pod: Pod, request: Request, turn: _Round) -> None:
        outcome: mutation.Placed | Refusal | None = self._share_of(pod, turn.existing)
        shut = self._shut(pod)
        if shut is not None:
            await self._stays_shut(unit, [(pod, shut)], turn, has_share=outcome is not None)
            return
        if outcome is None:
            outcome = await self._place(unit, pod, request, turn)
        if isinstance(outcome, Refusal):
            held = await self._holding.hold(unit, ((pod, request),), turn.existing)
            turn.waiting.append((pod, dataclasses.replace(outcome, reason=outcome.reason + held)))
        elif (shut := await self._open(pod, request, outcome)) is not None:
            await self._stays_shut(unit, [(pod, shut)], turn)

    async def _place(self, unit: Unit, pod: Pod, request: Request, turn: _Round) -> mutation.Placed | Refusal:
        """A share of what is free, or held for it or those behind it; what a pod like it was refused is not tried."""
        kind = f"{queue.kind(pod)}{pod.ref.uid if self._store.chooser.avoided(pod.manifest).barred else ''}"
        own, behind = turn.existing.own(unit), turn.existing.behind(unit)
        if not own and kind in turn.refused:
            return turn.refused[kind]
        outcome = await self._without(own).reserve(pod.manifest, request, pod.ref)
        if isinstance(outcome, Refusal) and behind:
            outcome = await self._without(_both(own, behind)).reserve(pod.manifest, request, pod.ref)
        if isinstance(outcome, Refusal):
            self._fairness.in_vain(unit)
            outcome = self._explained(pod, request, outcome, turn.existing)
            if outcome.cause is not Cause.LEDGER:  # which is about this pod, or one node's write, and not about room
                turn.refused.setdefault(kind, outcome)
        return outcome

    async def _take_together(self, unit: Unit, asks: Asks, turn: _Round) -> None:
        shares = {pod.ref.uid: share for pod, _ in asks if (share := self._share_of(pod, turn.existing)) is not None}
        missing = [(pod, request) for pod, request in asks if pod.ref.uid not in shares]
        shut = [(pod, why) for pod, _ in missing if (why := self._shut(pod)) is not None]
        if shut:
            await self._stays_shut(unit, _together(unit, *shut[0]), turn, has_share=bool(shares))
            return
        outcomes = await self._place_together(unit, missing, shares, turn)
        lacks = [(pod, outcome) for pod, _ in missing if isinstance(outcome := outcomes.get(pod.ref.uid), Refusal)]
        placed = shares | {uid: share for uid, share in outcomes.items() if isinstance(share, mutation.Placed)}
        if not lacks:
            await self._open_together(unit, asks, placed, turn)
            return
        await self._give_back([pod for pod, _ in asks if pod.ref.uid in placed])
        held = await self._holding.hold(unit, asks, turn.existing)
        pod, why = lacks[0]
        turn.waiting.extend(_together(unit, pod, dataclasses.replace(why, reason=why.reason + held)))

    async def _place_together(
        self, unit: Unit, missing: Asks, shares: Mapping[str, mutation.Placed], turn: _Round
    ) -> Mapping[str, mutation.Placed | Refusal]:
        """By uid the shares of those that have none yet, or of one why it gets none: nothing is reserved then."""
        gone = turn.existing.own(unit)
        lacks = await self._gang.lacks(missing, gone)
        if lacks is not None and (behind := turn.existing.behind(unit)):
            gone = _both(gone, behind)
            lacks = await self._gang.lacks(missing, gone)
        if lacks is not None:
            self._fairness.in_vain(unit)
            pod, why = lacks
            return {pod.ref.uid: why}
        preferred = await self._gang.preferred(missing, gone, [share.node for share in shares.values()])
        if preferred and await self._gang.lacks(missing, gone, preferred) is not None:
            preferred = {}  # near each other they stand in each other's way
        return await self._gang.reserve(missing, gone, preferred)

    async def _open_together(self, unit: Unit, asks: Asks, placed: Mapping[str, mutation.Placed], turn: _Round) -> None:
        """Once the shares of all are in the ledger for good, open the gates: whoever leads next opens the rest."""
        if not await self._gang.settle(placed.values()):
            said = "its share could not be written down for good: that is tried again"
            turn.waiting.extend(_together(unit, asks[0][0], Refusal(said, cause=Cause.LEDGER)))
            return
        opened = await asyncio.gather(*(self._open(pod, request, placed[pod.ref.uid]) for pod, request in asks))
        shut = [(pod, why) for (pod, _), why in zip(asks, opened, strict=True) if why is not None]
        if shut:
            await self._stays_shut(unit, shut, turn, has_share=len(shut) == asks[0][1].group_size)
        apart = gang.apart(unit.group, list(placed.values()))
        for (pod, _), why in zip(asks, opened, strict=True):
            if apart and why is None:
                self._warns(pod, apart)

    async def _open(self, pod: Pod, request: Request, placed: mutation.Placed) -> Refusal | None:
        """Why its gate stays shut, if that is so."""
        why = await self._opens(pod, request, placed)
        if why is None:
            self._passes.placed(pod)
        return why

    async def _open_settled(self, held_back: Iterable[Pod], existing: ExistingAllocations) -> dict[str, Refusal]:
        """Go on with those whose gang was placed, although it is no longer whole: their shares are theirs for good.

        Return by uid why the gates of some stay shut.
        """
        shut: dict[str, Refusal] = {}
        for pod in held_back:
            entry, request = existing.shares.get(pod.ref.uid), pod.request
            placed = self._share_of(pod, existing)
            if (
                entry is not None
                and entry.allocation.reserved_until is None
                and placed
                and isinstance(request, Request)
            ):
                why = await self._open(pod, request, placed)
                if why is not None:
                    shut[pod.ref.uid] = why
        return shut

    async def _stays_shut(self, unit: Unit, shut: Refusals, turn: _Round, *, has_share: bool = True) -> None:
        """Of these members the gates cannot be opened. If nobody's can ever, they keep nothing of what they have.

        The rest of a gang, of which others run, keeps its shares: without it they would have waited in vain.
        """
        turn.waiting.extend(shut)
        holders = [uid for uid in unit.uids if turn.existing.holds.pop(uid, None)]
        is_refused = has_share and all(why.cause is Cause.REFUSED for _, why in shut)
        if is_refused or holders:
            await self._give_back([pod for pod, _ in shut] if is_refused else (), holders=holders, for_good=True)

    async def _give_up(self, unit: Unit, existing: ExistingAllocations) -> None:
        """One of these is invalid, and keeps nothing; the others keep what is theirs for good, and run."""
        having = [pod for pod in unit.members if pod.ref.uid in existing.shares]
        holders = [uid for uid in unit.uids if existing.holds.pop(uid, None)]
        senseless = [pod for pod in having if isinstance(pod.request, str)]
        if having or holders:
            await self._give_back(having, holders=holders)
            await self._give_back(senseless, for_good=True)
            await self._open_settled([pod for pod in having if isinstance(pod.request, Request)], existing)

    async def _give_back(
        self, sharers: Collection[Pod], *, holders: Collection[str] = (), for_good: bool = False
    ) -> None:
        """Take from gated pods what is tentative, or all if `for_good`, and what is held for `holders` (uids)."""
        if not sharers and not holders:
            return
        surely = set(await self._still_gated(sharers)) if sharers else set[str]()

        def change(node: GpuNode) -> GpuNode:
            ids = [
                entry.id
                for entry in node.allocations
                if (
                    entry.pod.uid in holders
                    if entry.is_hold
                    else entry.pod.uid in surely and (for_good or entry.reserved_until)
                )
            ]
            return ledger.release(node, ids) if ids else node

        nodes = [view.node.name for view in self._store.views() if change(view.node) is not view.node]
        for name in nodes if surely or holders else ():
            try:
                await self._store.commit(name, change)
            except (ledger_store.UnreachableError, errors.LedgerError) as error:
                # Found again, and given back, in the next round.
                logger.warning("Could not give back what a gated pod held", extra={"node": name, "err": str(error)})

    def _share_of(self, pod: Pod, existing: ExistingAllocations) -> mutation.Placed | None:
        """The share that a placer before us, or a call whose answer was lost, has given to the pod."""
        entry = existing.shares.get(pod.ref.uid)
        if entry is None:
            return None
        hostname = self._store.chooser.hostname(entry.node)
        return mutation.Placed(entry.allocation.id, entry.node, hostname, entry.allocation.shares)

    def _without(self, gone: Gone) -> Reservation:
        return self._reservation.on(draft.Without(self._store, gone)) if gone else self._reservation

    def _explained(self, pod: Pod, request: Request, refusal: Refusal, existing: ExistingAllocations) -> Refusal:
        """The refusal, or who it gives way to if that is all there is."""
        if not existing.holds:
            return refusal
        everything = existing.everything()
        placed = self._without(everything).plan(pod.manifest, request)
        if isinstance(placed, Refusal):
            return refusal
        whose = [pod_ for pod_, node in existing.held_for() if node == placed.node]
        return Refusal(
            f"gives way to {whose[0] if whose else 'others'}, which has waited for longer, and for which what comes "
            f"free on {placed.node} is held; {refusal.reason}",
            refusal.rejected,
            Cause.HOLD,
        )


def _both(own: Gone, behind: Gone) -> Gone:
    return {node: {*own.get(node, ()), *behind.get(node, ())} for node in {*own, *behind}}


def _asks(unit: Unit, waiting: Refusals) -> Asks | None:
    """What each member asks for, the largest first; None, and why is in `waiting`, when that cannot be said."""
    asks = []
    for pod in unit.members:
        if isinstance(pod.request, str):
            waiting += _together(unit, pod, Refusal(pod.request, cause=Cause.REQUEST))
            return None
        asks.append((pod, pod.request))
    return sorted(asks, key=lambda ask: _size(ask[1]), reverse=True)


def _size(request: Request) -> tuple[int, int]:
    """Compute and memory of all its GPUs; a part of the memory is not counted, only bytes are."""
    compute = peak(request.demands, lambda demand: demand.share.request_percent * demand.gpus)
    memory_bytes = peak(request.demands, lambda demand: (demand.share.memory.bytes or 0) * demand.gpus)
    return compute, memory_bytes


def _together(unit: Unit, pod: Pod, refusal: Refusal) -> Refusals:
    """What the members are told when one of them does not fit."""
    said = f"its group {errors.quoted(unit.group)} waits for {pod.ref.name}: {refusal.reason}"
    others = dataclasses.replace(refusal, reason=said)
    return [(member, refusal if member is pod else others) for member in unit.members]


def _later(pod: Pod) -> Refusal:
    """What one is told that was not tried: what it has been told before, so that nothing has to be written."""
    said = pod.annotations.get(contract.REASON)
    return Refusal(said or "others of its namespace are tried before it: it has its turn soon", cause=Cause.TURN)


def _held_back(pod: Pod, sentence: str) -> Refusal:
    return Refusal(sentence, cause=Cause.GATE if pod.foreign_gates else Cause.GROUP)
