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
from typing import Any, Final, Protocol

from gpushare import borrowing, contract, errors
from gpushare.borrowing import Bounds, Placeholder
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import GpuNode
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook.controllers.borrow import borrow_packing, placeholders
from webhook.controllers.borrow.borrow_packing import BorrowPacking, LendingNode
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store
from webhook.store.ledger_store import ScratchStore
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

Refusals = Sequence[tuple[Pod, Refusal]]

RECHECK_SECONDS: Final = 2.0  # there is no watch of placeholders
END_SECONDS: Final = 1  # the grace period of a placeholder whose GPU has no share
LATE_SECONDS: Final = 15.0  # after so long unbound, the reason of a pod quotes why, and the pod may preempt
MAX_PODS: Final = 500  # packed in one round
_NOTHING: Final = Bounds(0, 0)
_LACK_ROOM: Final = (None, Cause.NO_GPU, Cause.HOLD)


@dataclasses.dataclass(frozen=True, slots=True)
class BorrowSettings:
    """max_gpus: of all nodes together. idle_seconds: how long a borrowed GPU without shares is kept."""

    max_gpus: int
    idle_seconds: float = 60.0


class BorrowClient(Protocol):
    """The calls of the API client that placeholders need; all raise ClusterError."""

    async def get(self, path: str) -> dict[str, Any]:
        """Return the object at `path`."""

    async def list(
        self, path: str, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        """Return the objects of the collection at `path`, each reduced by `keep`."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at `path`, and return it as stored."""

    async def delete(self, path: str, *, uid: str | None = None, grace_seconds: int | None = None) -> dict[str, Any]:
        """Delete the pod at `path` with this UID."""


@dataclasses.dataclass(eq=False)
class BorrowController:
    """Borrows GPUs for one cluster. report: gets the number of borrowed GPUs; warn: an Event about a node's GPUNode."""

    api: BorrowClient
    store: ledger_store.LiveLedger
    reservation: Reservation
    settings: BorrowSettings
    _: dataclasses.KW_ONLY
    warn: Callable[[str, str, str], None] = lambda *_: None
    report: Callable[[int], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.elected()

    def elected(self) -> None:
        """Start from what is in the cluster."""
        self.late_uids: frozenset[str] = frozenset()  # pods whose placeholder waits for long
        self._there: dict[str, list[Placeholder]] = {}  # by node, as listed in this round
        self._is_listed = False
        self._is_active = True
        self._idle_since: dict[str, float] = {}  # by UID of a placeholder
        self._warned: set[tuple[str, str]] = set()  # by node, and UID or GPU

    @property
    def recheck_seconds(self) -> float | None:
        """How long until the next round is due; None while nothing is borrowed or asked for."""
        return RECHECK_SECONDS if self._is_active else None

    async def tend(self) -> None:
        """Borrow what placeholders have got, and end those that leave and whose GPU has no share."""
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
            for node in nodes.values():
                await self._tend(node, self._there[node.name])
        except api_errors.ClusterError as error:
            logger.warning("Could not look after placeholders", extra={"err": str(error)})
            return
        self._is_listed = True
        self._is_active = bool(listed)
        self.report(sum(len(_borrowed(node)) for node in nodes.values()))

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
            # The agent ends one that leaves already: the kubelet does not shorten the grace period that has begun.
            if not one.leaves and borrowing.may_end(after, one.uid):
                await self._delete(one, grace_seconds=END_SECONDS)
        self._report_trouble(after, here)

    def _report_trouble(self, node: GpuNode, here: Sequence[Placeholder]) -> None:
        """Send an Event for each GPU that has shares and no placeholder, or one that leaves."""
        used, leaving = borrowing.used_gpus(node), {one.uid: one for one in here if one.leaves and one.has_gpu}
        exposed = borrowing.exposed(node, here)
        now: dict[tuple[str, str], tuple[str, str]] = {}
        for gpu in node.gpus:
            where = f"GPU {gpu.index} ({gpu.uuid})"
            if gpu.uuid in exposed:
                note = (
                    f"{where} has shares, but its placeholder has ended: until another placeholder has it, the other "
                )
                note += "device plugin may give it to a pod. It takes no new shares"
                now[node.name, gpu.uuid] = contract.EVENT_PLACEHOLDER_LOST, note
            elif gpu.uuid in used and gpu.owner in leaving:
                note = f"{where} takes no new shares, and goes back to its device plugin when its shares have ended: "
                note += f"its placeholder {leaving[gpu.owner].name} was preempted, evicted or deleted"
                now[node.name, gpu.owner] = contract.EVENT_GPU_RECLAIMED, note
        for key in now.keys() - self._warned:
            self.warn(node.name, *now[key])
        self._warned = {known for known in self._warned if known[0] != node.name} | now.keys()

    async def reconcile(self, waiting: Refusals) -> tuple[list[tuple[Pod, Refusal]], list[tuple[Pod, Refusal]]]:
        """Ask for GPUs and give idle ones back.

        Return the pods that a GPU is asked for, and the others; both with what is asked for, or why nothing is.
        """
        self.late_uids = frozenset()
        if not self._is_listed:
            return [], list(waiting)
        found = ((pod, pod.request) for pod, why in waiting if why.cause in _LACK_ROOM)
        lacking = [(pod, request) for pod, request in found if isinstance(request, Request)][:MAX_PODS]
        lenders = self._lenders()
        existing = sum(not one.has_ended for here in self._there.values() for one in here)
        asked_for = sum(not one.is_bound for here in self._there.values() for one in here)
        scratch = ScratchStore(self.store)
        try:
            most = max(0, self.settings.max_gpus - existing + asked_for)
            packing = await borrow_packing.pack(lacking, lenders, scratch, self.reservation, most=most)
        finally:
            scratch.close()
        failed = await self._write(lenders, packing, self.settings.max_gpus - existing)
        ends = {uid: self._end(node, packing, failed) for uid, node in packing.asked.items()}
        ends |= packing.unmet
        shown = [(pod, dataclasses.replace(why, reason=why.reason + ends.get(pod.ref.uid, ""))) for pod, why in waiting]
        is_asked = {uid for uid, node in packing.asked.items() if node not in failed}
        self.late_uids = frozenset(uid for uid in is_asked if self._late(packing.asked[uid]))
        asked = [entry for entry in shown if entry[0].ref.uid in is_asked]
        return asked, [entry for entry in shown if entry[0].ref.uid not in is_asked]

    def _lenders(self) -> list[LendingNode]:
        chooser, lenders = self.store.chooser, []
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
            having = [one for one in self._there.get(node.name, ()) if one.has_gpu]
            reported = {gpu.owner for gpu in node.gpus}
            coming = sum(one.uid not in reported for one in having if not one.leaves)
            in_use = chooser.cache.info(node.name).amounts.get(contract.BORROWED_RESOURCE, 0)
            free = max(0, offered.get(contract.BORROWED_RESOURCE, 0) - in_use) + coming
            room = max(0, bounds.most - len(having)) + coming
            lenders.append(LendingNode(node, bounds, refusal, free, room, len(_borrowed(node))))
        return lenders

    async def _write(self, lenders: Sequence[LendingNode], packing: BorrowPacking, left: int) -> dict[str, str]:
        """Create and delete placeholders; return, by node, why that failed."""
        failed: dict[str, str] = {}
        lending, template = {lender.node.name: lender for lender in lenders}, None
        nodes, now = {node.name: node for node in self.store.stored()}, self.clock()
        known = {one.uid for here in self._there.values() for one in here}
        self._idle_since = {uid: since for uid, since in self._idle_since.items() if uid in known}
        # A pod of the other plugin waits for a GPU that has shares, so it gets one that has none.
        hurries = any(self._is_reclaimed(nodes.get(name), here) for name, here in self._there.items())
        for name in dict.fromkeys((*self._there, *lending)):
            here, node, lender = self._there.get(name, []), nodes.get(name) or GpuNode(name), lending.get(name)
            bounds = lender.bounds if lender is not None and not lender.refusal else _NOTHING
            plan = borrowing.plan(
                node,
                here,
                bounds,
                wanted=packing.wanted.get(name, 0),
                idle_long=self._idle_long(node, here, packing, 0.0 if hurries else self.settings.idle_seconds, now),
                most=max(0, left),
            )
            try:
                if plan.give_back:
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

    def _idle_long(
        self, node: GpuNode, here: Sequence[Placeholder], packing: BorrowPacking, seconds: float, now: float
    ) -> set[str]:
        """Return the UIDs of the placeholders whose GPU has been idle for so long."""
        idle = {one.uid for one in borrowing.idle(node, here, packing.kept)}
        for one in here:
            if one.uid not in idle:
                self._idle_since.pop(one.uid, None)
        return {uid for uid in idle if now - self._idle_since.setdefault(uid, now) >= seconds}

    def _is_reclaimed(self, node: GpuNode | None, here: Sequence[Placeholder]) -> bool:
        leaving = {one.uid for one in here if one.leaves and one.has_gpu}
        used = borrowing.used_gpus(node) if node is not None else frozenset[str]()
        return node is not None and any(gpu.owner in leaving and gpu.uuid in used for gpu in node.gpus)

    def _end(self, node: str, packing: BorrowPacking, failed: Mapping[str, str]) -> str:
        """Return the end of the reason of a pod that a GPU of this node is asked for."""
        if node in failed:
            return f"; borrows no GPU of {node}: {failed[node]}"
        count = packing.wanted.get(node, 0)
        said = f"; waits for a GPU: {count} asked for from NVIDIA's plugin on node {node}"
        late = self._late(node)
        return said + (
            f", and {late[0].name} waits: {late[0].message or 'the scheduler has not tried it'}" if late else ""
        )

    def _late(self, node: str) -> list[Placeholder]:
        now = self.wall_clock()
        return [one for one in self._there.get(node, ()) if not one.is_bound and now - one.created >= LATE_SECONDS]

    async def _delete(self, one: Placeholder, *, grace_seconds: int | None = None) -> None:
        try:
            path = f"{placeholders.PODS_PATH}/{one.name}"
            await self.api.delete(path, uid=one.uid, grace_seconds=grace_seconds)
        except (api_errors.NotFound, api_errors.Conflict):
            return  # it is gone
        words = "Gave a GPU back" if grace_seconds is not None else "Withdrew a placeholder"
        logger.info(words, extra={"pod": one.name, "node": one.node})


def _borrowed(node: GpuNode) -> list[str]:
    return [gpu.uuid for gpu in node.gpus if gpu.owner and not gpu.unowned]
