"""No order of whole-GPU pods, placeholders, shares, reports and leaders gives a GPU both a share and a whole-GPU pod."""

from __future__ import annotations

import contextlib
import dataclasses

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from gpushare import borrowing, codec, contract, errors, ledger
from gpushare.borrowing import Bounds, Placeholder
from gpushare.gpunode import GpuNode
from tests import builders

pytestmark = pytest.mark.slow

GPUS = 3
UUIDS = [f"GPU-node-a-{index}" for index in range(GPUS)]
INDEX = st.integers(0, GPUS - 1)


class Borrowing(stateful.RuleBasedStateMachine):
    """A node of another device plugin, its kubelet and agent, two leaders with old lists, and webhook replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = builders.node(gpus=GPUS, owner=contract.OTHER_OWNER).borrowing({})
        self.holder: dict[str, str] = dict.fromkeys(UUIDS, "")  # GPU → its pod in the kubelet, `whole-…` or a UID
        self.pods: dict[str, Placeholder] = {}
        self.seen: list[tuple[GpuNode, list[Placeholder]]] = [(self.stored, []), (self.stored, [])]  # by leader
        self.read: GpuNode = self.stored  # by a replica, possibly old
        self.number = 0

    def new(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}-{self.number}"

    def write(self, after: GpuNode) -> None:
        """Write a change of the stored GPUNode, which gets a new version."""
        if after is not self.stored:
            self.stored = dataclasses.replace(after, version=self.new("v"))

    @stateful.rule(uuid=st.sampled_from(UUIDS))
    def whole_gpu_pod(self, uuid: str) -> None:
        """A whole-GPU pod comes, if the GPU is free, or ends."""
        if not self.holder[uuid]:
            self.holder[uuid] = self.new("whole")
        elif self.holder[uuid].startswith("whole"):
            self.holder[uuid] = ""

    @stateful.rule(uuid=st.sampled_from(UUIDS))
    def bind(self, uuid: str) -> None:
        """Scheduler and kubelet give a free GPU to a pending placeholder; the kubelet chooses which."""
        pending = [one for one in self.pods.values() if not one.is_bound]
        if pending and not self.holder[uuid]:
            self.pods[pending[0].uid] = dataclasses.replace(pending[0], is_bound=True)
            self.holder[uuid] = pending[0].uid

    @stateful.rule(number=INDEX)
    def preempt(self, number: int) -> None:
        """The scheduler, a drain or a user deletes a placeholder, which goes on until the placer ends it."""
        bound = [one for one in self.pods.values() if one.is_bound]
        if bound:
            one = bound[number % len(bound)]
            self.pods[one.uid] = dataclasses.replace(one, leaves=True)

    @stateful.rule(uuids=st.sets(st.sampled_from(UUIDS)))
    def report(self, uuids: set[str]) -> None:
        """The agent writes some owners; a restarted one only what it knows by then."""
        gpus = (
            dataclasses.replace(gpu, owner=uid if uid in self.pods else contract.OTHER_OWNER)
            if gpu.uuid in uuids and (uid := self.holder[gpu.uuid]) is not None
            else gpu
            for gpu in self.stored.gpus
        )
        stored = dataclasses.replace(self.stored, gpus=tuple(gpus))
        self.write(codec.read(codec.to_document(stored)))  # the owners decide anew which GPUs are unowned

    @stateful.rule()
    def read_ledger(self) -> None:
        self.read = self.stored

    @stateful.rule(number=INDEX, percent=st.integers(1, 60))
    def reserve(self, number: int, percent: int) -> None:
        """A replica places a share by what it has read; its write succeeds if only the status has changed since."""
        free = [gpu.uuid for gpu in self.read.gpus if gpu.takes_shares]
        if not free:
            return
        entry = builders.allocation(self.new("a"), free[number % len(free)], request=percent, memory_gib=1)
        if self.read.version == self.stored.version:
            with contextlib.suppress(errors.LedgerError):
                self.write(ledger.reserve(self.stored, entry))

    @stateful.rule(number=INDEX)
    def end_share(self, number: int) -> None:
        if self.stored.allocations:
            entry = self.stored.allocations[number % len(self.stored.allocations)]
            self.write(ledger.release(self.stored, [entry.id]))

    @stateful.rule(leader=st.integers(0, 1))
    def list_placeholders(self, leader: int) -> None:
        """A leader reads the GPUNode and then the placeholders, and is slow to act on them."""
        self.seen[leader] = (self.stored, list(self.pods.values()))

    @stateful.rule(leader=st.integers(0, 1), wanted=st.integers(0, GPUS), dies=st.integers(0, 3))
    def lead(self, leader: int, wanted: int, dies: int) -> None:
        """A leader carries out its plan by the list that it has; it may die between any two writes."""
        read, seen = self.seen[leader]
        if read.version != self.stored.version:
            read, seen = self.seen[leader] = self.stored, list(self.pods.values())  # a conflict
        self.write(borrowing.borrow(read, seen))
        self.seen[leader] = self.stored, seen
        if dies == 1:
            return
        for one in seen:
            if one.leaves and borrowing.may_end(self.stored, seen, one):
                self.pods.pop(one.uid, None)
                self.holder = {uuid: "" if uid == one.uid else uid for uuid, uid in self.holder.items()}
        if dies == 2:
            return
        idle = {one.uid for one in borrowing.idle(self.stored, seen, ())}
        plan = borrowing.plan(self.stored, seen, Bounds(0, GPUS), wanted=wanted, idle_long=idle, most=GPUS)
        for one in plan.delete:
            if one.uid in self.pods and self.pods[one.uid].is_bound:
                self.pods[one.uid] = dataclasses.replace(self.pods[one.uid], leaves=True)
            else:
                self.pods.pop(one.uid, None)
        for _ in range(plan.create):
            uid = self.new("p")
            self.pods[uid] = Placeholder(uid, uid, "node-a", created=float(self.number))

    @stateful.invariant()
    def no_gpu_has_a_share_and_a_whole_gpu_pod(self) -> None:
        both = {uuid for uuid in borrowing.used_gpus(self.stored) if not self.holder[uuid].startswith("p-")}
        assert not both, (both, self.holder)

    @stateful.invariant()
    def a_restart_reads_the_same(self) -> None:
        assert codec.read(codec.to_document(self.stored)) == self.stored


TestBorrowing = Borrowing.TestCase
TestBorrowing.settings = hypothesis.settings(max_examples=300, stateful_step_count=40)
