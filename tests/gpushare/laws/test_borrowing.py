"""No order of whole-GPU pods, placeholders, shares, reports and leaders gives a GPU both a share and a whole-GPU pod."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable

import pytest

from gpushare import borrowing, codec, contract, errors, ledger
from gpushare.borrowing import Bounds, Placeholder
from gpushare.gpunode import GpuNode
from tests import builders

pytestmark = pytest.mark.slow

GPUS = 2
UUIDS = [f"GPU-node-a-{index}" for index in range(GPUS)]
RUNS, STEPS = 150, 80


class World:
    """A node of another device plugin, its kubelet and agent, two leaders with old lists, and webhook replicas."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stored = builders.node(gpus=GPUS, owner=contract.OTHER_OWNER).borrowing({})
        self.holder: dict[str, str] = dict.fromkeys(UUIDS, "")  # GPU → its pod in the kubelet, `whole-…` or a UID
        self.pods: dict[str, Placeholder] = {}
        self.seen: list[tuple[GpuNode, list[Placeholder]]] = [(self.stored, []), (self.stored, [])]  # by leader
        self.read: GpuNode = self.stored  # by a replica, possibly old
        self.number = 0

    def new(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}-{self.number}"

    def end_marked(self) -> None:
        """The placer deletes the placeholders that it has marked, or the agent ends their processes, or later."""
        for uid in list(self.pods):
            if borrowing.may_end(self.stored, uid) and not self.is_slow():
                self.pods.pop(uid)
                self.holder = {uuid: "" if held == uid else held for uuid, held in self.holder.items()}

    def is_slow(self) -> bool:
        return self.random.random() < 0.3

    def write(self, after: GpuNode) -> None:
        """Write a change of the stored GPUNode, which gets a new version."""
        if after is not self.stored:
            assert codec.read(codec.to_document(after)) == after
            self.stored = dataclasses.replace(after, version=self.new("v"))

    def whole_gpu_pod(self) -> None:
        """A whole-GPU pod comes, if the GPU is free, or ends."""
        uuid = self.random.choice(UUIDS)
        if not self.holder[uuid]:
            self.holder[uuid] = self.new("whole")
        elif self.holder[uuid].startswith("whole"):
            self.holder[uuid] = ""

    def bind(self) -> None:
        """Scheduler and kubelet give a free GPU to a pending placeholder; the kubelet chooses which."""
        uuid = self.random.choice(UUIDS)
        pending = [one for one in self.pods.values() if not one.is_bound]
        if pending and not self.holder[uuid]:
            self.pods[pending[0].uid] = dataclasses.replace(pending[0], is_bound=True)
            self.holder[uuid] = pending[0].uid

    def preempt(self) -> None:
        """The scheduler, a drain or a user deletes a placeholder, which goes on until the placer ends it."""
        bound = [one for one in self.pods.values() if one.is_bound]
        if bound and self.is_slow():
            one = self.random.choice(bound)
            self.pods[one.uid] = dataclasses.replace(one, leaves=True)

    def recreate(self) -> None:
        """The GPUNode is deleted; the new one gets its shares again, and the owners with the agent's next report."""
        if self.random.random() < 0.2:
            gpus = tuple(dataclasses.replace(gpu, owner=contract.OTHER_OWNER) for gpu in self.stored.gpus)
            self.write(dataclasses.replace(self.stored, gpus=gpus).borrowing({}))

    def report(self) -> None:
        """The agent writes some owners; a restarted one only what it knows by then."""
        uuids = [uuid for uuid in UUIDS if self.random.random() < 0.8]
        gpus = (
            dataclasses.replace(gpu, owner=uid if uid in self.pods else contract.OTHER_OWNER)
            if gpu.uuid in uuids and (uid := self.holder[gpu.uuid]) is not None
            else gpu
            for gpu in self.stored.gpus
        )
        stored = dataclasses.replace(self.stored, gpus=tuple(gpus))
        self.write(codec.read(codec.to_document(stored)))  # the owners decide again which GPUs are unowned

    def reserve(self) -> None:
        """A replica places a share by what it has read, which may be old."""
        self.read = self.read if self.is_slow() else self.stored
        free = [gpu.uuid for gpu in self.read.gpus if gpu.takes_shares]
        if not free:
            return
        entry = builders.allocation(self.new("a"), self.random.choice(free), request=20, memory_gib=1)
        if self.read.version == self.stored.version:
            with contextlib.suppress(errors.LedgerError):
                self.write(ledger.reserve(self.stored, entry))

    def end_share(self) -> None:
        if self.stored.allocations:
            entry = self.random.choice(self.stored.allocations)
            self.write(ledger.release(self.stored, [entry.id]))

    def list_placeholders(self, leader: int = 1) -> None:
        """A leader reads the GPUNode and then the placeholders, and is slow to act on them."""
        self.seen[leader] = (self.stored, list(self.pods.values()))

    def lead(self) -> None:
        """A leader carries out its plan by the list that it has; it may die between any two writes."""
        leader, dies = self.random.randrange(2), self.random.randrange(8)
        if not self.is_slow():
            self.list_placeholders(leader)
        read, seen = self.seen[leader]
        if read.version != self.stored.version:
            read, seen = self.seen[leader] = self.stored, list(self.pods.values())  # a conflict
        self.write(borrowing.borrow(read, seen))
        self.seen[leader] = self.stored, seen
        if dies == 1:
            return
        self.end_marked()
        if dies == 2:
            return
        idle = {one.uid for one in borrowing.idle(self.stored, seen, ()) if self.is_slow()}
        wanted = self.random.randrange(GPUS)
        plan = borrowing.plan(self.stored, seen, Bounds(0, GPUS), wanted=wanted, idle_long=idle, most=GPUS)
        self.write(borrowing.borrow(self.stored, seen, {one.uid for one in plan.give_back}))
        self.seen[leader] = self.stored, seen
        self.end_marked()
        for one in plan.delete:
            if one.uid in self.pods and self.pods[one.uid].is_bound:
                self.pods[one.uid] = dataclasses.replace(self.pods[one.uid], leaves=True)
            else:
                self.pods.pop(one.uid, None)
        for _ in range(plan.create):
            uid = self.new("p")
            self.pods[uid] = Placeholder(uid, uid, "node-a", created=float(self.number))

    def check(self) -> None:
        """No GPU with a share is free for, or held by, a whole-GPU pod."""
        both = {uuid for uuid in borrowing.used_gpus(self.stored) if not self.holder[uuid].startswith("p-")}
        assert not both, (both, self.holder)


STEPS_OF_ALL: list[Callable[[World], None]] = [
    World.whole_gpu_pod,
    World.bind,
    World.bind,
    World.preempt,
    World.recreate,
    World.end_marked,
    World.report,
    World.reserve,
    World.reserve,
    World.end_share,
    World.list_placeholders,
    World.lead,
    World.lead,
]


@pytest.mark.parametrize("seed", range(4))
def test_law_no_gpu_has_a_share_and_a_whole_gpu_pod(seed: int) -> None:
    shared = 0
    for run in range(RUNS):
        world = World(seed * RUNS + run)
        for _ in range(STEPS):
            world.random.choice(STEPS_OF_ALL)(world)
            world.check()
            shared += bool(borrowing.used_gpus(world.stored))
    assert shared > RUNS * STEPS // 40, "hardly any step had a share"
