"""The preemptor: evicts pods of lower priority, so that a gated pod that fits nowhere takes their place.

Only if an administrator has turned it on. The record is a backfill reservation with its own prefix
(`contract.PREEMPTION_PREFIX`) on the GPUs that the pod will get. It is written before the first eviction, keeps what
the victims free, and ends when the pod has a share or is gone, or when its node cannot take the pod for a minute. Until
then only pods on these GPUs are evicted for it, also by the next placer. The API server checks PodDisruptionBudgets
again.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors, ledger, preemption
from gpushare.allocation import Allocation, GivenShare, NodeAllocation
from gpushare.cluster import api_client, api_errors
from gpushare.cluster.object_store import Key
from gpushare.defragmentation import evicting
from gpushare.gpunode import GpuNode
from gpushare.isolation import resolved
from gpushare.preemption import Nomination, Victim, Victims
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook.controllers import pacing, queue
from webhook.controllers.pending_reasons import EventRecorder
from webhook.controllers.preemption.victim_finder import VictimFinder
from webhook.metrics import Metrics
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation, ledger_store, reservation

logger = logging.getLogger(__name__)

BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"
MAX_PER_MINUTE: Final = 20  # evictions
MAX_TRIES: Final = 8  # kinds of pods for which a round searches the cluster
SEARCH_SECONDS: Final = 1.0  # after which a round ends its search; the next one begins at the next node
REST: Final = 4  # the pause after such a round, as a multiple of the search: it takes at most a fifth of the time
RETRY_SECONDS: Final = 10.0  # before the cluster is searched again for such a kind, at least
RETRY_FACTOR: Final = 10  # the same as a multiple of its search
FORGET_SECONDS: Final = 600.0  # a kind that was tried so long ago counts as new
LOOKS: Final = 100  # at waiting pods or nodes, before the event loop runs other tasks
COMPARED: Final = 10_000  # priorities, likewise
SPARED_SECONDS: Final = 60.0  # for a pod that the API server shows as protected
UNFIT_SECONDS: Final = 60.0  # before a nomination is withdrawn because its node cannot take the pod
USELESS_SECONDS: Final = 600.0  # before pods of such a node are evicted again: others took what was freed there
SLOW_SECONDS: Final = 600.0  # a nomination this old does not count among MAX_NOMINATED: its victims may never end
MAX_WITH_SLOW: Final = 4 * preemption.MAX_NOMINATED  # nominations, slow ones included
EVICTION_SECONDS: Final = 10.0
NEVER: Final = "Never"  # spec.preemptionPolicy

Waiting = Sequence[tuple[Pod, Refusal]]
Kind = tuple[str, int]  # needs and priority


@dataclasses.dataclass(eq=False)
class Preemptor:
    """Decides for the waiting pods of each round. pods: all with a share; leads: whether this process still leads."""

    api: api_client.ApiClient
    store: ledger_store.LiveLedger
    pods: Mapping[Key, Pod]
    recorder: EventRecorder
    metrics: Metrics
    policy: str
    _: dataclasses.KW_ONLY
    leads: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=MAX_PER_MINUTE)
        self._retry_at: dict[Kind, float] = {}  # of pods for which no victims were found; also while it is past
        self._resume_at: float | None = None  # if the last search has left kinds untried
        self._searched_at = -math.inf
        self._next_node = 0
        self._finder = VictimFinder(self.store, self.pods, self.policy)
        self._unfit_since: dict[str, float] = {}  # UID of a nominated pod that its node cannot take
        self._useless: dict[str, float] = {}  # nodes whose nomination was withdrawn, and until when
        self._since: dict[str, float] = {}  # UIDs of nominated pods
        self._failed: dict[str, str] = {}  # by UID of a nominated pod: what the last failed eviction adds to its reason

    @property
    def recheck_seconds(self) -> float | None:
        """How long until the next round is due for pods that found nothing; None without any."""
        due = [at for at in self._retry_at.values() if at > self._searched_at]
        due += [self._resume_at] if self._resume_at is not None else []
        return max(0.0, min(due) - self.clock()) if due else None

    async def nominated_uids(self) -> frozenset[str]:
        return frozenset(await self._nominated())

    async def reconcile(self, waiting: Waiting) -> list[tuple[Pod, Refusal]]:
        """Evict for the pods that wait; return the refusals, with the places that pods take."""
        now = self.clock()
        self._retry_at = {kind: at for kind, at in self._retry_at.items() if at > now - FORGET_SECONDS}
        self._finder.spared = {uid: until for uid, until in self._finder.spared.items() if until > now}
        there = ((uid, key, self.pods.get(key)) for uid, key in self._finder.evicted.items())
        self._finder.evicted = {uid: key for uid, key, pod in there if pod is not None and pod.ref.uid == uid}
        self._useless = {name: until for name, until in self._useless.items() if until > now}
        nominated = await self._nominated()
        self._since = {uid: self._since.get(uid, now) for uid in nominated}
        self._unfit_since = {uid: since for uid, since in self._unfit_since.items() if uid in nominated}
        self._failed = {uid: suffix for uid, suffix in self._failed.items() if uid in nominated}
        suffixes: dict[str, str] = {}
        for pod, _ in waiting:
            if (entry := nominated.get(pod.ref.uid)) is not None and isinstance(pod.request, Request):
                suffixes[pod.ref.uid] = await self._continue(pod, pod.request, entry)
        suffixes |= await self._nominate_next(waiting, nominated)
        return [(pod, _with(why, suffixes.get(pod.ref.uid, ""))) for pod, why in waiting]

    async def _nominated(self) -> dict[str, NodeAllocation]:
        """Return the nominations by UID; release the second one of a pod, from a placer that saw the first too late."""
        nominating: list[GpuNode] = []
        for number, view in enumerate(list(self.store.views())):
            if any(entry.is_nomination for entry in view.node.allocations):
                nominating.append(view.node)
            if number % LOOKS == 0:
                await pacing.let_others_run()
        nominated = nominations(nominating)
        kept = {entry.allocation.id for entry in nominated.values()}
        for node in nominating:
            surplus = [entry.id for entry in node.allocations if entry.is_nomination and entry.id not in kept]
            if surplus:
                await self._commit(node.name, functools.partial(ledger.release, ids=surplus))
        return nominated

    async def _continue(self, pod: Pod, request: Request, entry: NodeAllocation) -> str:
        """Evict what still has to go for a nominated pod; after a while, withdraw a nomination that does not help."""
        view, uid, now = self.store.view(entry.node), pod.ref.uid, self.clock()
        found = await self._finder.find(view, pod, request, own=entry.allocation) if view is not None else None
        if found is None:
            suffix = f"; takes the place of other pods on {entry.node}, which cannot take it at the moment"
            suffix = self._failed.get(uid, suffix)
        else:
            suffix = await self._evict_all(pod, found)
            if not found.victims or found.is_ending or self._has_evicted(found) or self._pause_seconds() > 0:
                self._unfit_since.pop(uid, None)
                return suffix
        # Such as a node that is not ready for a moment: pods were evicted for this place.
        if now - self._unfit_since.setdefault(uid, now) < UNFIT_SECONDS or not self.leads():
            return suffix
        if not await self._commit(entry.node, functools.partial(ledger.release, ids=(entry.allocation.id,))):
            return suffix
        self._useless[entry.node] = now + USELESS_SECONDS
        return ""

    async def _nominate_next(self, waiting: Waiting, nominated: Mapping[str, NodeAllocation]) -> dict[str, str]:
        """Nominate the first pod for which others can go: at most one in a round."""
        began = self._searched_at = self.clock()
        recent = [entry for uid, entry in nominated.items() if began - self._since[uid] < SLOW_SECONDS]
        taken = {entry.node for entry in nominated.values()} | self._useless.keys()
        is_full = len(recent) >= preemption.MAX_NOMINATED or len(nominated) >= MAX_WITH_SLOW
        if is_full or self._pause_seconds() > 0 or began < (self._resume_at or began):
            return {}
        self._resume_at, tries = None, 0
        namespaces = {entry.allocation.pod.namespace for entry in recent}
        others = [(pod, why) for pod, why in waiting if pod.ref.uid not in nominated]
        async with contextlib.aclosing(self._in_turn(others, namespaces, began)) as turns:
            async for kind, pod, request in turns:
                before = self.clock()
                if tries >= MAX_TRIES or before - began >= SEARCH_SECONDS:
                    self._resume_at = before + REST * (before - began)
                    break
                tries += 1
                try:
                    found = await self._choose(pod, request, taken)
                except (api_errors.ClusterError, TimeoutError) as error:
                    logger.warning("Could not read what may be evicted", extra={"pod": str(pod.ref), "err": str(error)})
                    found = None
                if not self.leads():
                    break
                if found is not None and self._waits(pod) and await self._nominate(pod, request, found):
                    suffix = await self._evict_all(pod, found, is_first=True)
                    if self._has_evicted(found) or not self.leads():  # the next placer may have evicted for it
                        return {pod.ref.uid: suffix}
                    await self._withdraw(pod)  # nothing is lost, and others may be less protected
                    found = None
                now = self.clock()
                self._retry_at[kind] = now + max(RETRY_SECONDS, RETRY_FACTOR * (now - before))
        return {}

    async def _in_turn(
        self, waiting: Waiting, namespaces: Collection[str], now: float
    ) -> AsyncGenerator[tuple[Kind, Pod, Request], None]:
        """Yield a pod of each kind that is due: new kinds in the order of the queue, then those tried longest ago."""
        lowest = math.inf
        for number, pod in enumerate(list(self.pods.values())):
            if number % COMPARED == 0:
                await pacing.let_others_run()
            if pod.priority < lowest and not pod.is_gated:
                lowest = pod.priority
        again: dict[Kind, tuple[float, Pod, Request]] = {}
        for number, (pod, why) in enumerate(sorted(waiting, key=lambda entry: queue.order(entry[0])), start=1):
            if number % LOOKS == 0:
                await pacing.let_others_run()
            request, lacks_room = pod.request, why.cause is None and not why.lasts
            if pod.ref.namespace in namespaces or pod.priority <= lowest or not lacks_room or not may_preempt(pod):
                continue
            if not isinstance(request, Request):
                continue
            kind = queue.kind(pod), pod.priority
            tried = self._retry_at.get(kind)
            if tried is None:
                yield kind, pod, request
            elif tried <= now:
                again.setdefault(kind, (tried, pod, request))
        for kind, (_, pod, request) in sorted(again.items(), key=lambda item: item[1][0]):
            yield kind, pod, request

    async def _choose(self, pod: Pod, request: Request, taken: set[str]) -> Nomination | None:
        """Return the smallest loss that the API server would allow now; None if there is none, or none is needed."""
        budgets: evicting.Budgets | None = None

        async def search(name: str) -> Nomination | None:
            await pacing.let_others_run()
            view = self.store.view(name)
            return await self._finder.find(view, pod, request) if view is not None and view.node.gpus else None

        async def protected(victims: Victims) -> list[str]:
            nonlocal budgets
            if budgets is None:
                declared = await self.api.list(BUDGETS_PATH, keep=lambda item: item)
                budgets = evicting.Budgets.from_manifests(declared.items)
            there = [(victim, await self._now(victim)) for victim in victims]
            forbidden = preemption.forbidden(there, budgets, priority=pod.priority)
            self._finder.spared |= dict.fromkeys(forbidden, self.clock() + SPARED_SECONDS)
            return forbidden

        return await preemption.choose(self._nodes_in_turn(taken), search, protected)

    def _nodes_in_turn(self, taken: set[str]) -> Iterator[str]:
        """Yield the other nodes, from the one after the last search's, until the search has taken too long."""
        began, names = self.clock(), [view.node.name for view in self.store.views()]
        for _ in names:
            self._next_node = (self._next_node + 1) % len(names)
            if names[self._next_node] not in taken:
                yield names[self._next_node]
            if self.clock() - began >= SEARCH_SECONDS:
                break

    async def _now(self, victim: Victim) -> dict[str, Any] | None:
        """Return the pod as the API server has it now; None if it is gone."""
        try:
            manifest = await self.api.get(_path(victim))
        except api_errors.NotFound:
            return None
        return manifest if (manifest.get("metadata") or {}).get("uid") == victim.allocation.pod.uid else None

    async def _nominate(self, pod: Pod, request: Request, found: Nomination) -> bool:
        """Record the nomination on the node, in place of other reservations of the pod; return whether it is stored."""
        name, identity = found.placement.node, contract.PREEMPTION_PREFIX + reservation.new_id()
        shares = tuple(
            GivenShare(share.containers, (uuid,), 0, 100, 0, steps=share.steps)
            for share in found.placement.shares
            for uuid in share.gpu_uuids
        )
        labels = resolved(request, found.placement.isolation).constraints.labels
        entry = Allocation(identity, pod.ref, shares, labels=labels)

        def change(node: GpuNode) -> GpuNode:
            if any(held.id == identity for held in node.allocations):
                return node
            if nominations([node]) or not self._finder.still_helps(node, pod, request, found):
                raise errors.LedgerError(f"{node.name} has changed since pods were chosen to be evicted")
            own = [held.id for held in node.allocations if _reserves(held, pod)]
            return backfill_reservation.grown(ledger.reserve(ledger.release(node, own), entry), {pod.ref.uid: request})

        return await self._withdraw(pod, but=name) and await self._commit(name, change)

    async def _withdraw(self, pod: Pod, *, but: str = "") -> bool:
        """Release the reservations of a pod, except on the node `but`; return whether all writes succeeded."""
        names = [view.node.name for view in self.store.views() if any(_reserves(e, pod) for e in view.node.allocations)]

        def release(node: GpuNode) -> GpuNode:
            return ledger.release(node, [entry.id for entry in node.allocations if _reserves(entry, pod)])

        return all([await self._commit(name, release) for name in names if name != but])

    async def _evict_all(self, pod: Pod, found: Nomination, *, is_first: bool = False) -> str:
        """Evict the victims as far as the rate allows; return whose place the pod takes, and why some stay for now.

        is_first: stop if the first eviction fails, because nothing is lost then. One that fails later stops no other.
        """
        failed = ""
        for victim in found.victims:
            if not self.leads():
                failed = failed or "another placer continues"
                break
            if not self._waits(pod):
                failed = failed or "it is gone"
                break
            if self._pause_seconds() > 0:
                failed = failed or f"waits, because {MAX_PER_MINUTE} pods were evicted within a minute"
                break
            why = await self._evict(pod, victim)
            if why:
                failed = failed or f"{victim.allocation.pod} could not be evicted yet: {why}"
                seconds = SPARED_SECONDS if is_first else RETRY_SECONDS
                self._finder.spared[victim.allocation.pod.uid] = self.clock() + seconds
            if why and is_first:
                break
            is_first = False
        suffix = _suffix(found, failed)
        if failed:
            self._failed[pod.ref.uid] = suffix
        else:
            self._failed.pop(pod.ref.uid, None)
        return suffix

    def _waits(self, pod: Pod) -> bool:
        """Whether the pod still needs a place; it may have been deleted while other tasks ran."""
        now = self.pods.get(Key(pod.ref.namespace, pod.ref.name))
        return now is not None and now.ref.uid == pod.ref.uid and now.is_gated and not now.leaves

    def _has_evicted(self, found: Nomination) -> bool:
        return any(victim.allocation.pod.uid in self._finder.evicted for victim in found.victims)

    async def _evict(self, pod: Pod, victim: Victim) -> str:
        ref = victim.allocation.pod
        try:
            async with asyncio.timeout(EVICTION_SECONDS):
                await self.api.create(
                    f"{_path(victim)}/eviction", evicting.eviction(ref.namespace, ref.name, uid=ref.uid)
                )
        except api_errors.NotFound:
            self._finder.evicted[ref.uid] = Key(ref.namespace, ref.name)
            return ""
        except (api_errors.ClusterError, TimeoutError) as error:
            sentence = errors.shortened(str(error) or "no answer in time")
            logger.info("Could not evict a pod for another", extra={"pod": str(ref), "err": sentence})
            return sentence
        self._finder.evicted[ref.uid] = Key(ref.namespace, ref.name)
        self._recent.append(self.clock())
        self.metrics.preempted()
        logger.warning("Evicted a pod for one of higher priority", extra={"pod": str(ref), "for": str(pod.ref)})
        priorities = f"whose priority {pod.priority} is above {victim.priority}"
        note = f"evicted for {pod.ref}, {priorities}; its owner recreates this pod"
        reference = {"apiVersion": "v1", "kind": "Pod", **dataclasses.asdict(ref)}
        self.recorder.record(reference, contract.EVENT_PREEMPTED, note, type="Warning")
        self.recorder.record(pod.reference, contract.EVENT_PREEMPTING, f"takes the place of {ref}, which was evicted")
        return ""

    def _pause_seconds(self) -> float:
        """Return how long until the next eviction is allowed."""
        is_full = len(self._recent) == MAX_PER_MINUTE
        return max(0.0, self._recent[0] + 60.0 - self.clock()) if is_full else 0.0

    async def _commit(self, name: str, change: ledger_store.Change) -> bool:
        failure, level = "Could not write a nomination", logging.INFO
        return await ledger_store.try_commit(self.store, name, change, failure, level=level) is not None


def nominations(nodes: Iterable[GpuNode]) -> dict[str, NodeAllocation]:
    """Return the reservations of pods for which others are evicted, by UID; of several, that with the lowest ID."""
    entries = [NodeAllocation(node.name, held) for node in nodes for held in node.allocations if held.is_nomination]
    entries.sort(key=lambda entry: entry.allocation.id, reverse=True)
    return {entry.allocation.pod.uid: entry for entry in entries}


def may_preempt(pod: Pod) -> bool:
    """Whether others may be evicted for this pod: it is no member of a gang, and its policy allows it."""
    return not pod.group and (pod.manifest.get("spec") or {}).get("preemptionPolicy") != NEVER


def _reserves(entry: Allocation, pod: Pod) -> bool:
    return entry.is_backfill_reservation and entry.pod.uid == pod.ref.uid


def _path(victim: Victim) -> str:
    return f"/api/v1/namespaces/{victim.allocation.pod.namespace}/pods/{victim.allocation.pod.name}"


def _suffix(found: Nomination, failed: str) -> str:
    where = f"; takes the place of other pods on {found.placement.node}"
    if not found.victims:
        return f"{where}, which are ending"
    return f"{where}: {preemption.names(found.victims)}{f' ({failed})' if failed else ''}"


def _with(why: Refusal, suffix: str) -> Refusal:
    return dataclasses.replace(why, reason=why.reason + suffix, cause=Cause.PREEMPTS) if suffix else why
