"""Packs the pods that lack room onto GPUs that could be borrowed, one GPU more at a time, so that few are borrowed.

Nodes where a GPU is free come first. If none is, the placeholder waits in the scheduler's queue like any other pod. The
placement engine decides what fits.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Sequence

from gpushare import contract, ledger
from gpushare.borrowing import Bounds
from gpushare.gpunode import Gpu, GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.controllers import queue
from webhook.pods.stored_pod import Pod
from webhook.store.ledger_store import ScratchStore
from webhook.store.reservation import Reservation


@dataclasses.dataclass(frozen=True, slots=True)
class LendingNode:
    """A node of another device plugin. refusal: why no GPU of it can be borrowed, as a clause, or empty.

    free: how many GPUs the scheduler could bind now, or has bound to placeholders that the agent has not reported.
    room: how many more could be borrowed at all. borrowed: how many are.
    """

    node: GpuNode
    bounds: Bounds
    refusal: str = ""
    free: int = 0
    room: int = 0
    borrowed: int = 0


@dataclasses.dataclass(slots=True)
class BorrowPacking:
    """How many GPUs to borrow by node; borrowed ones that waiting pods need; by pod UID, the node, or why none."""

    wanted: dict[str, int] = dataclasses.field(default_factory=dict)
    kept: set[str] = dataclasses.field(default_factory=set)
    asked: dict[str, str] = dataclasses.field(default_factory=dict)
    unmet: dict[str, str] = dataclasses.field(default_factory=dict)


class _Packer:
    def __init__(
        self, scratch: ScratchStore, reservation: Reservation, lenders: Sequence[LendingNode], most: int
    ) -> None:
        self._scratch, self._reservation, self._left = scratch, reservation, most
        self._lenders = sorted(lenders, key=lambda one: (-one.borrowed, -one.free, one.node.name))
        self._nodes: dict[str, GpuNode] = {}  # with what was packed onto them
        self._refused: dict[str, str] = {}  # by kind of pod
        self.packing = BorrowPacking()

    async def add(self, pod: Pod, request: Request) -> None:
        await asyncio.sleep(0)
        if pod.group:  # the members of a gang that fit now need no more GPUs, but those that they fit on
            fits = await self._reservation.on(self._scratch).reserve(pod.manifest, request, pod.ref)
            if not isinstance(fits, Refusal):
                self.packing.kept.update(uuid for share in fits.shares for uuid in share.gpu_uuids)
                return
        kind = queue.kind(pod)
        if kind in self._refused:
            self.packing.unmet[pod.ref.uid] = self._refused[kind]
            return
        for only_free in (True, False):
            for lender in self._lenders:
                if not lender.refusal and self._place(pod, request, lender, only_free=only_free):
                    self.packing.asked[pod.ref.uid] = lender.node.name
                    return
        self.packing.unmet[pod.ref.uid] = self._refused[kind] = self._why_not(pod)

    def _place(self, pod: Pod, request: Request, lender: LendingNode, *, only_free: bool) -> bool:
        """Pack the pod onto the node, with as few more GPUs as it needs; return whether it fits."""
        name, wanted = lender.node.name, self.packing.wanted
        view = self._scratch.view(name)
        node = self._nodes.get(name) or (view.node if view is not None else lender.node)
        foreign = [gpu.uuid for gpu in node.gpus if gpu.unowned and _owned(gpu).takes_shares]
        room = min(lender.free, lender.room) if only_free else lender.room
        most = min(len(foreign), max(0, room - wanted.get(name, 0)), self._left)
        count, (made, outcome) = most, self._try(node, foreign[:most], pod, request)
        if isinstance(outcome, Refusal):
            return False
        for fewer in range(most):
            with_fewer, fits = self._try(node, foreign[:fewer], pod, request)
            if isinstance(fits, Placement):
                count, made, outcome = fewer, with_fewer, fits
                break
        entry = outcome.allocation(request, allocation_id=f"new-{pod.ref.uid}", pod=pod.ref, reserved_until=None)
        self._nodes[name] = ledger.reserve(made, entry)
        self._scratch.assume(pod.manifest, request, name, entry.id)
        self.packing.kept.update(uuid for uuid in entry.gpu_uuids if uuid not in foreign)
        wanted[name] = wanted.get(name, 0) + count
        self._left -= count
        return True

    def _try(
        self, node: GpuNode, foreign: Collection[str], pod: Pod, request: Request
    ) -> tuple[GpuNode, Placement | Refusal]:
        """Return the node as if these GPUs were borrowed, and where the pod would go there."""
        gpus = tuple(_owned(gpu) if gpu.uuid in foreign else gpu for gpu in node.gpus)
        made = dataclasses.replace(node, gpus=gpus)
        policy = self._reservation.policy
        return made, self._scratch.chooser.place_on(NodeView.from_node(made), pod.manifest, request, policy=policy)

    def _why_not(self, pod: Pod) -> str:
        """Return the end of the pod's reason; empty if no node that it may run on lends GPUs."""
        reason_against = self._scratch.chooser.node_filter(pod.manifest)
        lenders = [lender for lender in self._lenders if reason_against(lender.node.name) is None]
        for lender in lenders:
            if lender.refusal:
                return f"; borrows no GPU of {lender.node.name}: {lender.refusal}"
        if lenders and not self._left:
            return "; borrows no GPU: as many are borrowed as may be (--borrow-max-gpus)"
        for lender in lenders:
            if lender.room <= self.packing.wanted.get(lender.node.name, 0):
                most = f"no more than {lender.bounds.most} may be borrowed (label {contract.BORROW_LABEL})"
                return f"; borrows no GPU of {lender.node.name}: {most}"
        return ""


def _owned(gpu: Gpu) -> Gpu:
    return dataclasses.replace(gpu, unowned=False)


async def pack(
    waiting: Sequence[tuple[Pod, Request]],
    lenders: Sequence[LendingNode],
    scratch: ScratchStore,
    reservation: Reservation,
    *,
    most: int,
) -> BorrowPacking:
    """Pack the pods in this order; `most`: how many GPUs may be borrowed in addition. The caller closes `scratch`."""
    packer = _Packer(scratch, reservation, lenders, most)
    for pod, request in waiting if lenders else ():
        await packer.add(pod, request)
    return packer.packing
