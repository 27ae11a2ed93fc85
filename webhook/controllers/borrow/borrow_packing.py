"""Packs the pods that lack room onto GPUs that could be borrowed, one GPU more at a time, so that few are borrowed.

Nodes where a GPU is free come first. If none is, the placeholder waits in the scheduler's queue like any other pod. The
placement engine decides what fits.
"""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final

from gpushare import borrowing, contract, ledger
from gpushare.borrowing import Bounds
from gpushare.gpunode import FACTS, Gpu, GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.controllers import pacing, queue
from webhook.pods.stored_pod import Pod
from webhook.store.ledger_store import ScratchStore
from webhook.store.reservation import Reservation

MAX_KINDS: Final = 20  # kinds of pods that are tried on all nodes, and refused, in one round


Waiting = Sequence[tuple[Pod, Request]]


@dataclasses.dataclass(frozen=True, slots=True)
class LendingNode:
    """A node of another device plugin. refusal: why no GPU of it can be borrowed, as a clause, or empty.

    free: how many GPUs the scheduler could bind now. coming: how many it has bound to placeholders that the agent has
    not reported. room: how many more could be borrowed at all, with those that come. borrowed: how many are. unfit:
    which GPU the kubelet gave that no share can use, as a clause, or empty.
    """

    node: GpuNode
    bounds: Bounds
    refusal: str = ""
    free: int = 0
    coming: int = 0
    room: int = 0
    borrowed: int = 0
    unfit: str = ""

    @property
    def room_now(self) -> int:
        """How many more GPUs could be borrowed without waiting for one."""
        return min(self.free + self.coming, self.room)


@dataclasses.dataclass(slots=True)
class RefusedKinds:
    """The kinds of pods that no borrowed GPU would help, from round to round, with the end of their reason.

    skipped: those tried while a round could not try all kinds; they have their next turn after the others.
    """

    ends: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(slots=True)
class BorrowPacking:
    """How many GPUs to borrow by node; borrowed ones that waiting pods need; by pod UID, the node, or why none.

    queued: UIDs of the pods whose GPU must become free first.
    """

    wanted: dict[str, int] = dataclasses.field(default_factory=dict)
    kept: set[str] = dataclasses.field(default_factory=set)
    asked: dict[str, str] = dataclasses.field(default_factory=dict)
    queued: set[str] = dataclasses.field(default_factory=set)
    unmet: dict[str, str] = dataclasses.field(default_factory=dict)


class _Packer:
    def __init__(
        self,
        scratch: ScratchStore,
        reservation: Reservation,
        lenders: Sequence[LendingNode],
        most: int,
        refused: RefusedKinds,
    ) -> None:
        self._scratch, self._reservation, self._left = scratch, reservation, most
        self._lenders = sorted(lenders, key=lambda one: (-one.borrowed, -one.free - one.coming, one.node.name))
        self._facts = {lender.node.name: tuple(map(FACTS, lender.node.gpus)) for lender in lenders}
        self._nodes: dict[str, GpuNode] = {}  # with what was packed onto them
        self._known = refused
        self._refused, self._untried = dict[str, str](), dict[str, str]()  # the end of the reason by kind of pod
        self._tried = set[str]()  # the kinds refused in this round, also those of gangs of which too few pods fit
        self._unfit: set[Hashable] = set()  # kinds of pods with facts of unused nodes that they do not fit on
        self.packing = BorrowPacking()

    async def add_gang(self, members: Waiting, together: int) -> None:
        """Pack the pods of a gang, or borrow nothing for them, if fewer would fit than have to."""
        trial = copy.copy(self)
        trial._scratch, trial._nodes = ScratchStore(self._scratch), dict(self._nodes)
        trial._refused = dict(self._refused)
        trial.packing = BorrowPacking(wanted=dict(self.packing.wanted))
        packed = trial.packing
        try:
            for pod, request in members:
                await trial.add(pod, request)
        except BaseException:
            trial._scratch.close()
            raise
        if (count := len(members) - len(packed.unmet)) >= together:
            self._scratch.adopt(trial._scratch)
            self._nodes, self._left, self._refused = trial._nodes, trial._left, trial._refused
            self.packing.wanted = packed.wanted
            self.packing.kept |= packed.kept
            self.packing.asked |= packed.asked
            self.packing.queued |= packed.queued
            self.packing.unmet |= packed.unmet
            return
        trial._scratch.close()
        if not packed.asked and not packed.kept:  # otherwise members may have been in each other's way
            self._refused = trial._refused
        why = f"; borrows no GPU for its group, as only {count} of the {together} pods that start together would fit"
        self.packing.unmet |= {pod.ref.uid: packed.unmet.get(pod.ref.uid) or why for pod, _ in members}

    async def add(self, pod: Pod, request: Request) -> None:
        await asyncio.sleep(0)
        if pod.group:  # the members of a gang that fit now need no more GPUs, but those that they fit on
            fits = await self._reservation.on(self._scratch).reserve(pod.manifest, request, pod.ref)
            if not isinstance(fits, Refusal):
                self.packing.kept.update(uuid for share in fits.shares for uuid in share.gpu_uuids)
                return
        kind = queue.kind(pod)
        if kind not in self._refused and (kind in self._known.skipped or len(self._tried) >= MAX_KINDS):
            self._untried.setdefault(kind, self._known.ends.get(kind, ""))
        if kind in self._refused or kind in self._untried:
            self.packing.unmet[pod.ref.uid] = self._refused.get(kind, self._untried.get(kind, ""))
            return
        reason_against = self._scratch.chooser.node_filter(pod.manifest)
        for only_free in (True, False):
            for lender in self._lenders:
                if lender.refusal or (not only_free and lender.room == lender.room_now):
                    continue
                await pacing.let_others_run()
                if reason_against(lender.node.name) is None and self._place(pod, request, kind, lender, only_free):
                    self.packing.asked[pod.ref.uid] = lender.node.name
                    self.packing.queued |= set() if only_free else {pod.ref.uid}
                    return
        self._tried.add(kind)
        self.packing.unmet[pod.ref.uid] = self._refused[kind] = self._why_not(pod)

    def end(self) -> BorrowPacking:
        """Record the kinds that were refused for the next round, and return the packing."""
        waits_for_turn = self._untried.keys() - self._known.skipped
        self._known.skipped = self._known.skipped | self._tried if waits_for_turn else set()
        self._known.ends = self._untried | self._refused
        return self.packing

    def _place(self, pod: Pod, request: Request, kind: str, lender: LendingNode, only_free: bool) -> bool:
        """Pack the pod onto the node, with as few more GPUs as it needs; return whether it fits."""
        name, wanted = lender.node.name, self.packing.wanted
        room = max(0, (lender.room_now if only_free else lender.room) - wanted.get(name, 0))
        if not room and not lender.borrowed and name not in self._nodes:
            return False
        view = self._scratch.view(name)
        node = self._nodes.get(name) or (view.node if view is not None else lender.node)
        used = borrowing.used_gpus(node)  # one that has shares and is unowned goes back to its plugin
        foreign = [gpu.uuid for gpu in node.gpus if gpu.unowned and gpu.uuid not in used and _owned(gpu).takes_shares]
        most = min(len(foreign), room, self._left)
        # Unused nodes with equal GPUs refuse a kind of pod alike.
        alike = None if node.allocations or name in self._nodes else (kind, most, self._facts[name])
        if alike in self._unfit:
            return False
        count, (made, outcome) = most, self._try(node, foreign[:most], pod, request)
        if isinstance(outcome, Refusal):
            self._unfit |= {alike} if alike is not None else set()
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
                if lender.unfit:
                    return f"; borrows no GPU of {lender.node.name}: {lender.unfit}"
                most = f"no more than {lender.bounds.most} may be borrowed (label {contract.BORROW_LABEL})"
                return f"; borrows no GPU of {lender.node.name}: {most}"
        return ""


def _owned(gpu: Gpu) -> Gpu:
    return dataclasses.replace(gpu, unowned=False)


async def pack(
    waiting: Waiting,
    lenders: Sequence[LendingNode],
    scratch: ScratchStore,
    reservation: Reservation,
    *,
    most: int,
    refused: RefusedKinds,
    together: Mapping[str, int],
) -> BorrowPacking:
    """Pack the pods in this order; `most`: how many GPUs may be borrowed in addition. The caller closes `scratch`.

    refused: of the last round; updated. together: by UID, how many pods of its gang have to fit with this one.
    """
    packer = _Packer(scratch, reservation, lenders, most, refused)
    gangs = collections.defaultdict[tuple[str, str], list[tuple[Pod, Request]]](list)
    for pod, request in waiting:
        if together[pod.ref.uid] > 1:
            gangs[pod.ref.namespace, pod.group].append((pod, request))
    for pod, request in waiting if lenders else ():
        if together[pod.ref.uid] <= 1:
            await packer.add(pod, request)
        elif members := gangs.pop((pod.ref.namespace, pod.group), []):
            await packer.add_gang(members, together[pod.ref.uid])
    return packer.end()
