"""The allocation controller: confirms and releases allocations as pods come and go, with one write per node."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpushare import contract, errors, ledger, resizing
from gpushare.allocation import Allocation, NodeAllocation, PodRef
from gpushare.cluster import api_client, api_errors, events
from gpushare.cluster import object_store as cluster_store
from gpushare.gpunode import GpuNode
from gpushare.request import Request
from webhook.controllers import due_changes, pacing
from webhook.controllers.due_changes import ConfirmBatcher, DueChangesByNode, FirstSeen
from webhook.controllers.restore import PODS_SELECTOR, Restorer
from webhook.controllers.touched_nodes import Touched, TouchedNodes
from webhook.metrics import Metrics
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation, ledger_store
from webhook.store.api_store import ApiStore
from webhook.store.reservation import LIFETIME_SECONDS

logger = logging.getLogger(__name__)

MAX_CONCURRENT_READS: Final = 16
INSPECTED_AT_ONCE: Final = 100  # GPUNodes; takes some milliseconds
RECHECK_SECONDS: Final = 30.0  # for a pod that exists although our cache lacks it
UNANSWERED_SECONDS: Final = 2.0  # before the next read, after one that the API server did not answer

Pods = Mapping[cluster_store.Key, Pod]
# A node and our cache of pods → requests of the pods that wait there for a larger share, by allocation ID, in order.
Resizes = Callable[[str, Pods], Sequence[tuple[str, Request]]]


@dataclasses.dataclass(eq=False)
class AllocationController:
    """Confirms, releases and expires allocations. is_first: as of `Restorer`. resizes: pods that want more."""

    api: api_client.ApiClient
    store: ApiStore
    touched_nodes: TouchedNodes
    recorder: events.Recorder
    metrics: Metrics
    _: dataclasses.KW_ONLY
    lifetime_seconds: float = LIFETIME_SECONDS
    is_first: Callable[[], bool] = lambda: False
    resizes: Resizes = lambda *_: ()
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._pods = self.store.pods
        self._first_seen = FirstSeen(self.lifetime_seconds)
        self._batcher = ConfirmBatcher()
        self._reads = asyncio.Semaphore(MAX_CONCURRENT_READS)
        self._alive: dict[str, float] = {}  # allocation ID -> when its pod was last seen alive
        self._unanswered = False  # whether a read of this round was not answered
        self._due = DueChangesByNode()
        self._restorer = Restorer(
            self.api,
            self.store,
            self.recorder,
            self.metrics,
            touched_nodes=self.touched_nodes,
            lifetime_seconds=self.lifetime_seconds,
            is_first=self.is_first,
        )
        self._inspector = LedgerInspector(self.store, self.recorder, self.metrics)

    @property
    def unconfirmed(self) -> frozenset[str]:
        """Nodes with unconfirmed allocations, which every round has to check, because reservations expire there."""
        return self._due.unconfirmed

    async def reconcile(self, touched: Touched) -> float | None:
        """Write the changes that are due; return when the next are due, by our clock."""
        await pacing.let_others_run()
        now = self.clock()
        nodes = self._first_seen.timed(touched.nodes, now=now)
        found = due_changes.find(nodes, touched.pods, now=now, departed=touched.departed)
        due = self._due.renew(nodes, touched.names, found)
        await pacing.let_others_run()
        next_restore = await self._restorer.reconcile(touched, now=now)
        await pacing.let_others_run()
        await self._inspector.inspect()
        ripe, next_confirm = self._batcher.due(due.confirm, now=now)
        confirm = {node: dict(pods) for node, pods in ripe.items()}
        lapsed = []
        for entry, claimant in await self.claimants(due.lapsed):
            if claimant is None or claimant.has_ended:
                lapsed.append(entry)
            else:
                confirm.setdefault(entry.node, {})[entry.allocation.id] = claimant.ref
        self._alive = {identity: at for identity, at in self._alive.items() if now - at < RECHECK_SECONDS}
        suspects = [entry for entry in due.gone if entry.allocation.id not in self._alive]
        self._unanswered = False
        # Write each node once, as soon as the API server has confirmed which of its suspects are gone. If thousands of
        # pods end at once, confirming all takes long; meanwhile the first nodes are already released.
        ended, unclaimed, asked = _by_node(due.release), _by_node(lapsed), _by_node(suspects)
        await asyncio.gather(
            *(
                self._write(name, confirm.get(name, {}), set(ended[name]), unclaimed[name], asked[name])
                for name in sorted({*confirm, *ended, *unclaimed, *asked})
            )
        )
        next_retry = self.clock() + UNANSWERED_SECONDS if self._unanswered else None
        return min(
            (at for at in (due.next_expiry, next_confirm, next_restore, next_retry) if at is not None), default=None
        )

    async def is_gone(self, allocation: Allocation) -> bool | None:
        """Whether the holder is gone; None if the API server does not answer, which ends the reads of the round."""
        holder = allocation.pod
        async with self._reads:
            if self._unanswered:
                return None
            try:
                pod = Pod.from_manifest(await self.api.get(f"/api/v1/namespaces/{holder.namespace}/pods/{holder.name}"))
            except api_errors.NotFound:
                return True
            except api_errors.ClusterError as error:
                logger.warning("Could not read a pod", extra={"pod": str(holder), "err": str(error)})
                if not isinstance(error, api_errors.Unavailable):
                    return False
                self._unanswered = True
                return None
        return not due_changes.still_holds(pod, holder)

    async def claimants(self, lapsed: Iterable[NodeAllocation]) -> list[tuple[NodeAllocation, Pod | None]]:
        """Return late claimants of expired reservations, by a consistent read."""
        by_namespace: dict[str, list[NodeAllocation]] = collections.defaultdict(list)
        for entry in lapsed:
            by_namespace[entry.allocation.pod.namespace].append(entry)
        claimants: list[tuple[NodeAllocation, Pod | None]] = []
        for namespace, entries in by_namespace.items():
            try:
                path, query = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": PODS_SELECTOR}
                listing = await self.api.list(path, query, keep=Pod.from_manifest)
            except api_errors.ClusterError as error:
                logger.warning("Could not list pods", extra={"namespace": namespace, "err": str(error)})
                continue
            claims = due_changes.claims_of(listing.items)
            claimants += [(entry, due_changes.claimant(entry.allocation, claims)) for entry in entries]
        return claimants

    async def _write(
        self,
        name: str,
        confirm: Mapping[str, PodRef],
        ended: set[str],
        unclaimed: Mapping[str, Allocation],
        suspects: Mapping[str, Allocation],
    ) -> None:
        answers = dict(zip(suspects, await asyncio.gather(*map(self.is_gone, suspects.values())), strict=True))
        now = self.clock()
        self._alive |= {identity: now for identity, is_gone in answers.items() if is_gone is False}
        gone = {identity for identity, is_gone in answers.items() if is_gone}
        if not (confirm or ended or gone or unclaimed):
            return
        grow = self.resizes(name, self._pods.objects)

        def change(node: GpuNode) -> GpuNode:
            uids = {entry.id: entry.pod.uid for entry in node.allocations}
            # A pod may have claimed an expired reservation meanwhile, or one of a pod that is gone.
            free = {identity for identity in unclaimed if not uids.get(identity)}
            free |= {identity for identity in gone if uids.get(identity) in {"", suspects[identity].pod.uid}}
            after = ledger.release(ledger.confirm(node, confirm), ended | free)
            # In the same write, so that no other pod gets what is released. Backfill reservations come first, then pods
            # that wait for a larger share.
            requests = backfill_reservation.waiting_requests([node], self._pods.objects)
            after = resizing.step_all(backfill_reservation.grown(after, requests), grow)
            return node if after.allocations == node.allocations else after

        try:
            stored = await self.store.commit(name, change)
        except (ledger_store.UnreachableError, errors.LedgerError) as error:
            logger.warning("Could not update the allocations of a node", extra={"node": name, "err": str(error)})
            return
        kept = {entry.id for entry in stored.allocations}
        expired = unclaimed.keys() - kept
        changed = {"confirmed": sorted(confirm), "released": sorted((ended | gone) - kept), "expired": sorted(expired)}
        for words, ids in changed.items():
            if ids:
                self.metrics.changed_allocations(words, len(ids))
        logger.info("Updated the allocations of a node", extra={"node": name, **changed})
        regarding = self.store.document(name)
        for identity in changed["expired"]:
            allocation = unclaimed[identity]
            if regarding is not None:
                note = f"the reservation {allocation.id} for {allocation.pod} expired: its pod never appeared"
                self.recorder.record(regarding, contract.EVENT_EXPIRED, note, action="Release")


@dataclasses.dataclass(eq=False)
class LedgerInspector:
    """Reports invalid ledger entries and violated rules, after a manual edit. Their GPUs take no new pods."""

    store: ApiStore
    recorder: events.Recorder
    metrics: Metrics

    def __post_init__(self) -> None:
        self._seen: dict[str, tuple[GpuNode, tuple[str, ...]]] = {}

    async def inspect(self) -> None:
        before, self._seen = self._seen, {}
        inspected = 0
        for node in self.store.stored():
            known, sentences = before.get(node.name, (None, ()))
            if known is not node:
                inspected += 1
                if inspected % INSPECTED_AT_ONCE == 0:
                    await pacing.let_others_run()
                problems = (*node.problems, *ledger.violations(node))
                for sentence in problems:
                    if sentence not in sentences:
                        logger.error("The ledger has an invalid entry", extra={"node": node.name, "err": sentence})
                        if document := self.store.document(node.name):
                            reason = contract.EVENT_LEDGER
                            self.recorder.record(document, reason, sentence, type="Warning", action="Inspect")
                sentences = problems
            self._seen[node.name] = node, sentences
        self.metrics.ledger_problems(sum(len(sentences) for _, sentences in self._seen.values()))


def _by_node(entries: Iterable[NodeAllocation]) -> dict[str, dict[str, Allocation]]:
    by_node: dict[str, dict[str, Allocation]] = collections.defaultdict(dict)
    for entry in entries:
        by_node[entry.node][entry.allocation.id] = entry.allocation
    return by_node
