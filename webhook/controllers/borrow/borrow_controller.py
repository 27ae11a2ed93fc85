"""The borrow controller: keeps placeholders and the ledger in step with the GPUs that shares need, and says so.

In each round of the placer it first borrows the GPUs that placeholders have got, and marks those that leave (`tend`).
After the gated pods have had their turn it asks for more GPUs, and gives idle ones back (`reconcile`). It reads the
placeholders from the API server each time, so that the next placer continues where this one ended.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from gpushare import borrowing, contract, errors
from gpushare.borrowing import Bounds, Placeholder
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import GpuNode
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from gpushare.whatif import unavailable_nodes
from webhook.controllers.borrow import borrow_packing, placeholders
from webhook.controllers.borrow.borrow_history import BorrowHistory
from webhook.controllers.borrow.borrow_packing import BorrowPacking, LendingNode, RefusedKinds
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store
from webhook.store.ledger_store import ScratchStore
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

Refusals = Sequence[tuple[Pod, Refusal]]

RECHECK_SECONDS: Final = 2.0  # there is no watch of placeholders
END_SECONDS: Final = 1  # the grace period of a placeholder on a node without a ledger
LATE_SECONDS: Final = 15.0  # after so long unbound, the reason of a pod quotes why, and the pod may preempt
SILENT_SECONDS: Final = 30.0  # after so long an agent that has to act counts as silent
FIRST_PAUSE_SECONDS: Final = 10.0  # at least, before a node that gave a useless GPU is asked again
MAX_PODS: Final = 500  # packed in one round
_NOTHING: Final = Bounds(0, 0)
_LACK_ROOM: Final = (None, Cause.NO_GPU, Cause.HOLD)


@dataclasses.dataclass(frozen=True, slots=True)
class BorrowSettings:
    """max_gpus: of all nodes together. idle_seconds: how long a borrowed GPU without shares is kept."""

    max_gpus: int
    idle_seconds: float = 60.0


@dataclasses.dataclass(eq=False)
class BorrowController:
    """Borrows GPUs for one cluster.

    report: gets the number of borrowed GPUs. warn: sends an Event about a node's GPUNode, or about a placeholder.
    """

    api: api_client.ApiClient
    store: ledger_store.LiveLedger
    reservation: Reservation
    settings: BorrowSettings
    _: dataclasses.KW_ONLY
    warn: Callable[[str | Placeholder, str, str], None] = lambda *_: None
    report: Callable[[int], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.elected()

    def elected(self) -> None:
        """Start from what is in the cluster."""
        self._there: dict[str, list[Placeholder]] = {}  # by node, as listed in this round
        self._is_listed = False
        self._is_active = True
        self._history = BorrowHistory(max(self.settings.idle_seconds, FIRST_PAUSE_SECONDS))
        self._refused = RefusedKinds()
        self._warned: set[tuple[str, str]] = set()  # by node, and UID or GPU

    @property
    def recheck_seconds(self) -> float | None:
        """How long until the next round is due; None while nothing is borrowed or asked for."""
        return RECHECK_SECONDS if self._is_active else None

    async def tend(self) -> None:
        """Borrow the GPUs that placeholders were given; delete marked placeholders whose GPU has no share."""
        nodes = {
            node.name: node for node in self.store.stored() if node.borrowed or any(gpu.owner for gpu in node.gpus)
        }
        self._is_listed = False
        if not nodes and not self._is_active:
            return
        try:
            # The versions of the GPUNodes were read before: an older list of placeholders is never acted on.
            listed = (await self.api.list(placeholders.PODS_PATH, keep=placeholders.read)).items
            self._there = collections.defaultdict(list)
            for one in listed:
                self._there[one.node].append(one)
        except api_errors.ClusterError as error:
            logger.warning("Could not look after placeholders", extra={"err": str(error)})
            return
        for node in nodes.values():
            try:
                await self._tend(node, self._there[node.name])
            except api_errors.ClusterError as error:  # the next round retries
                extra = {"node": node.name, "err": str(error)}
                logger.warning("Could not write placeholders", extra=extra)
            for one in borrowing.to_label(node, self._there[node.name]):
                await self._label(one)
        self._is_listed = True
        self._is_active = bool(listed)
        self.report(sum(len(_borrowed(node)) for node in nodes.values()))

    async def _label(self, one: Placeholder) -> None:
        try:
            await self.api.patch(f"{placeholders.PODS_PATH}/{one.name}", placeholders.label(one))
        except api_errors.NotFound:
            return  # it is gone
        except api_errors.ClusterError as error:  # the next round retries; the node's other placeholders do not wait
            logger.warning("Could not label a placeholder", extra={"pod": one.name, "err": str(error)})

    async def _tend(self, node: GpuNode, here: Sequence[Placeholder], given_back: Collection[str] = ()) -> None:
        """Write what is borrowed; delete placeholders that are marked, once the ledger is stored."""

        def change(stored: GpuNode) -> GpuNode:
            if stored.version != node.version:
                raise errors.LedgerError("it has changed since the placeholders were listed")
            return borrowing.borrow(stored, here, given_back)

        try:
            is_same = borrowing.borrow(node, here, given_back) is node
            after = node if is_same else await self.store.commit(node.name, change)
        except (ledger_store.UnreachableError, errors.LedgerError) as error:
            logger.info("Could not borrow GPUs now", extra={"node": node.name, "err": str(error)})
            return  # the next round retries
        for one in here:
            # With its own, long grace period: the node's agent ends it once no process is left on its GPU.
            if not one.leaves and borrowing.may_end(after, one.uid):
                await self._delete(one)
        self._report_trouble(after, here)

    def _report_trouble(self, node: GpuNode, here: Sequence[Placeholder]) -> None:
        """Send an Event for each GPU that has shares and no placeholder, or one that leaves, and for silent agents."""
        used, leaving = borrowing.used_gpus(node), {one.uid: one for one in here if one.leaves and one.has_gpu}
        exposed = borrowing.exposed(node, here)
        now: dict[tuple[str, str], tuple[str | Placeholder, str, str]] = {}
        for gpu in node.gpus:
            where = f"GPU {gpu.index} ({gpu.uuid})"
            if gpu.uuid in exposed:
                note = (
                    f"{where} has shares, but its placeholder has ended: until another placeholder has it, the other "
                )
                note += "device plugin may give it to a pod. It takes no new shares"
                now[node.name, gpu.uuid] = node.name, contract.EVENT_PLACEHOLDER_LOST, note
            elif gpu.uuid in used and gpu.owner in leaving:
                note = f"{where} takes no new shares, and goes back to its device plugin when its shares have ended: "
                note += f"its placeholder {leaving[gpu.owner].name} was preempted, evicted or deleted"
                now[node.name, gpu.owner] = node.name, contract.EVENT_GPU_RECLAIMED, note
        for one in self._silent(here):
            now[node.name, f"silent {one.uid}"] = one, contract.EVENT_AGENT_SILENT, self._silence(node, one)
        for key in now.keys() - self._warned:
            self.warn(*now[key])
        self._warned = {known for known in self._warned if known[0] != node.name} | now.keys()

    async def reconcile(self, waiting: Refusals) -> tuple[list[tuple[Pod, Refusal]], list[tuple[Pod, Refusal]]]:
        """Ask for GPUs and give idle ones back.

        Return the pods that a GPU is asked for and may be given soon, and the others; both with what is asked for, or
        why nothing is. Pods whose placeholder waits for a GPU are among the others: room may be made elsewhere.
        """
        if not self._is_listed:
            return [], list(waiting)
        found = ((pod, pod.request) for pod, why in waiting if why.cause in _LACK_ROOM)
        lacking = [(pod, request) for pod, request in found if isinstance(request, Request)][:MAX_PODS]
        together = {pod.ref.uid: why.together for pod, why in waiting}
        lenders = self._lenders()
        existing = sum(not one.has_ended for here in self._there.values() for one in here)
        # Pods are packed again on GPUs that are asked for, or that a placeholder has and no agent has reported yet.
        asked_for = sum(not one.is_bound for here in self._there.values() for one in here)
        asked_for += sum(lender.coming for lender in lenders if not lender.refusal)
        scratch = ScratchStore(self.store)
        try:
            most = max(0, self.settings.max_gpus - existing + asked_for)
            packing = await borrow_packing.pack(
                lacking, lenders, scratch, self.reservation, most=most, refused=self._refused, together=together
            )
        finally:
            scratch.close()
        self._history.asked(packing.asked, {pod.ref.uid for pod, _ in lacking})
        failed = await self._write(lenders, packing, self.settings.max_gpus - existing)
        ends = {uid: self._end(node, packing, failed) for uid, node in packing.asked.items()}
        ends |= packing.unmet
        shown = [(pod, dataclasses.replace(why, reason=why.reason + ends.get(pod.ref.uid, ""))) for pod, why in waiting]
        slow = {node for node in packing.wanted if node in failed or self._late(node) or self._unreported(node)}
        is_asked = {uid for uid, node in packing.asked.items() if node not in slow} - packing.queued
        asked = [entry for entry in shown if entry[0].ref.uid in is_asked]
        return asked, [entry for entry in shown if entry[0].ref.uid not in is_asked]

    def _lenders(self) -> list[LendingNode]:
        chooser, lenders, now = self.store.chooser, list[LendingNode](), self.clock()
        for view in self.store.views():
            node, spec = view.node, chooser.cache.node_spec(view.node.name)
            label = spec.labels.get(contract.BORROW_LABEL) if spec is not None else None
            if spec is None or label is None or not any(gpu.owner for gpu in node.gpus):
                continue
            offered = spec.allocatable or {}
            try:
                bounds = borrowing.read_bounds(label)
                refusal = borrowing.refusal(node, spec.labels, offered)
            except errors.QuantityError as error:
                bounds, refusal = _NOTHING, str(error)
            count = offered.get(contract.BORROWED_RESOURCE, 0)
            # A kubelet that has just started offers no GPU yet; its placeholders are kept.
            bounds = _NOTHING if refusal and count else bounds
            having = [one for one in self._there.get(node.name, ()) if one.has_gpu]
            reported = {gpu.owner for gpu in node.gpus}
            coming = sum(one.uid not in reported for one in having if not one.leaves)
            free = max(0, count - chooser.cache.info(node.name).amounts.get(contract.BORROWED_RESOURCE, 0))
            pause = self._history.pause(node.name, now=now)
            room = 0 if pause else max(0, bounds.most - len(having))
            unfit = pause or next(filter(None, (borrowing.fault(node, one.uid) for one in having)), "")
            borrowed = len(_borrowed(node))
            lenders.append(LendingNode(node, bounds, refusal, free, coming, room + coming, borrowed, unfit))
        return lenders

    async def _write(self, lenders: Sequence[LendingNode], packing: BorrowPacking, left: int) -> dict[str, str]:
        """Create and delete placeholders; return, by node, why that failed."""
        failed: dict[str, str] = {}
        lending, template = {lender.node.name: lender for lender in lenders}, None
        nodes, now = {node.name: node for node in self.store.stored()}, self.clock()
        self._history.forget_except(one for here in self._there.values() for one in here)
        for name in dict.fromkeys((*self._there, *lending)):
            here, node, lender = self._there.get(name, []), nodes.get(name) or GpuNode(name), lending.get(name)
            if name in nodes:
                self._history.observe(node, here, packing.kept, now=now, wall_time=self.wall_clock())
            lost = self._history.to_replace(node, here, free=lender.free if lender is not None else 0, now=now)
            plan = borrowing.plan(
                node,
                here,
                lender.bounds if lender is not None else _NOTHING,
                wanted=packing.wanted.get(name, 0) + lost,
                idle_long=self._idle_long(node, here, now),
                most=max(0, left) if lender is not None and not lender.refusal else 0,
            )
            try:
                if name not in nodes:
                    await self._abandon(name, here, now)
                if plan.give_back:
                    self._history.gave_back(node, plan.give_back, now=now)
                    node = next((each for each in self.store.stored() if each.name == name), node)
                    listed = (await self.api.list(placeholders.PODS_PATH, keep=placeholders.read)).items
                    here = [one for one in listed if one.node == name]
                    await self._tend(node, here, [one.uid for one in plan.give_back])
                for one in plan.delete:
                    await self._delete(one)
                for _ in range(plan.create):
                    template = template or (await self.api.get(placeholders.TEMPLATE_PATH))["template"]
                    await self.api.create(placeholders.PODS_PATH, placeholders.manifest(template, name))
                    logger.info("Asked another device plugin for a GPU", extra={"node": name})
                    left -= 1
            except api_errors.ClusterError as error:
                logger.warning("Could not write placeholders", extra={"node": name, "err": str(error)})
                failed[name] = errors.shortened(str(error))
            self._is_active = self._is_active or bool(plan.create)
        return failed

    def _idle_long(self, node: GpuNode, here: Sequence[Placeholder], now: float) -> set[str]:
        """Return the UIDs of the placeholders whose GPU has been idle for long enough."""
        leaving = {one.uid for one in here if one.leaves and one.has_gpu}
        used, reported = borrowing.used_gpus(node), {gpu.owner for gpu in node.gpus}
        long = self._history.idle_long(here, now=now, seconds=self.settings.idle_seconds)
        if any(gpu.owner in leaving and gpu.uuid in used for gpu in node.gpus):
            # A pod of the other plugin waits for a GPU that has shares, so it gets one that has none.
            long |= self._history.idle_long(here, now=now, seconds=0.0) & reported
        return long

    async def _abandon(self, name: str, here: Sequence[Placeholder], now: float) -> None:
        """End placeholders of a node without a GPUNode: no agent is there to end them, and no ledger places shares."""
        amounts = self.store.chooser.cache.info(name).amounts
        if any(amount and resource.startswith(f"{contract.GROUP_NAME}/") for resource, amount in amounts.items()):
            return  # pods with shares run there
        for one in here:
            since = self._history.without_ledger(one.uid, now=now)
            if one.has_gpu and now - since >= self.settings.idle_seconds:
                await self._delete(one, grace_seconds=END_SECONDS)

    def _end(self, node: str, packing: BorrowPacking, failed: Mapping[str, str]) -> str:
        """Return the last clause of a pod's reason, if gpushare has asked for a GPU of this node for the pod."""
        if node in failed:
            return f"; borrows no GPU of {node}: {failed[node]}"
        count = packing.wanted.get(node, 0)
        said = f"; waits for a GPU: {count} asked for from NVIDIA's plugin on node {node}"
        if late := self._late(node):
            said += f", and {late[0].name} waits: {late[0].message or 'the scheduler has not tried it'}"
        view = self.store.view(node)
        if view is not None and (unreported := self._unreported(node)):
            said += f", and {unreported[0].name} {self._silence(view.node, unreported[0])}"
        return said

    def _late(self, node: str) -> list[Placeholder]:
        """Return the node's placeholders that the scheduler has not bound for long."""
        there, now = self._there.get(node, ()), self.wall_clock()
        return [one for one in there if not (one.is_bound or one.has_ended) and now - one.created >= LATE_SECONDS]

    def _silent(self, here: Collection[Placeholder]) -> list[Placeholder]:
        """Return the placeholders whose node's agent has had to act for long."""
        now = self.clock()
        return [one for one in here if self._history.awaits_agent(one.uid, now=now, seconds=SILENT_SECONDS)]

    def _unreported(self, node: str) -> list[Placeholder]:
        """Return the node's placeholders whose GPU takes no share, because a silent agent does not report it."""
        return [one for one in self._silent(self._there.get(node, ())) if not one.leaves]

    def _silence(self, node: GpuNode, one: Placeholder) -> str:
        """Return what the agent has not done about a placeholder, and why as far as that is known."""
        spec = self.store.chooser.cache.node_spec(node.name)
        why = unavailable_nodes.without_agent(node, (spec.allocatable if spec is not None else None) or {})
        why = why or f"is the agent of {node.name} running? If it is, its log says why"
        if borrowing.may_end(node, one.uid):
            return f"is given back, and keeps its GPU from other pods until the agent of {node.name} ends it: {why}"
        return f"has a GPU that the agent of {node.name} has not reported, so it takes no share: {why}"

    async def _delete(self, one: Placeholder, *, grace_seconds: int | None = None) -> None:
        try:
            path = f"{placeholders.PODS_PATH}/{one.name}"
            await self.api.delete(path, uid=one.uid, grace_seconds=grace_seconds)
        except (api_errors.NotFound, api_errors.Conflict):
            return  # it is gone
        words = "Gives a GPU back" if one.has_gpu else "Withdrew a placeholder"
        logger.info(words, extra={"pod": one.name, "node": one.node})


def _borrowed(node: GpuNode) -> list[str]:
    return [gpu.uuid for gpu in node.gpus if gpu.owner and not gpu.unowned]
