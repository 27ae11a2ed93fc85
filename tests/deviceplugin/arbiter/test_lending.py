"""Memory is lent beyond a share's own while no request needs it, and never given twice, also if a process lags or ends, or a message is lost.

As in `test_resize_protocol`, the arbiter, its records and the processes are real. Here the placer also places other
pods into what the stored GPUNode says is free, and changes what the share requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import lending, share_resizing, tenant
from deviceplugin.arbiter.share_ledger import ShareLedger
from gpushare import ledger
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import GpuNode, Resize
from tests.deviceplugin import arbiter_node
from tests.deviceplugin.arbiter import test_resize_protocol as protocol
from tests.deviceplugin.arbiter.test_resize_protocol import MAX, STEPS, BrokenLawError
from tests.deviceplugin.arbiter_node import GPUS, ArbiterNode

OWN, LIMIT = 20, 80


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "CHUNK_BYTES", 4)
    monkeypatch.setattr(share_resizing, "LEND_SECONDS", 0.02)


def other(node: ArbiterNode, memory_bytes: int) -> None:
    """Place another pod's share, as the ledger would."""
    share = GivenShare(("main",), (GPUS[0],), 10, 100, memory_bytes)
    node.allocations[1:] = (
        [Allocation("other", PodRef("default", "other", "u-other"), (share,))] if memory_bytes else []
    )


class World(protocol.World):
    """A share with a memory limit, and pods that come and go."""

    def __init__(self, node: ArbiterNode, dice: random.Random, *, is_limit_fixed: bool = True) -> None:
        self.is_limit_fixed = is_limit_fixed
        node.gpu_bytes, self.now = MAX, 0.0
        node.clock = lambda: self.now
        self.asking: set[asyncio.Task[None]] = set()
        self.flying: tuple[tuple[Resize, ...], int] | None = None  # a write that has not arrived
        super().__init__(node, dice)
        share = dataclasses.replace(self.share, memory_bytes=OWN, memory_limit_bytes=LIMIT)
        node.allocations[0] = dataclasses.replace(node.allocations[0], shares=(share,))
        self.version += 1
        self.hear()

    def stored(self) -> GpuNode:
        return dataclasses.replace(self.node.gpunode(), resizes=self.resizes)

    def place(self) -> None:
        """Let the placer act on the stored object."""
        self.now += self.dice.choice([0.1, 4.0, 30.0])
        before = list(self.node.allocations)
        free_bytes = (
            MAX - ledger.use(dataclasses.replace(self.stored(), allocations=(before[0],)))[GPUS[0]].memory_bytes
        )
        if not self.is_limit_fixed and self.dice.random() < 0.1:
            limit_bytes = self.dice.choice([None, LIMIT // 2, LIMIT, LIMIT])
            above = limit_bytes is not None and limit_bytes > self.share.memory_bytes
            self._put("limited", memory_limit_bytes=limit_bytes if above else None)
        elif self.dice.random() < 0.3:
            leaves = self.dice.random() < 0.4
            other(self.node, 0 if leaves else self.dice.randrange(free_bytes + 1))
            self.done.add("left" if leaves else "placed")
        else:
            super().place()
            if ledger.violations(self.stored()):  # the placer refuses it
                self.node.allocations = before
                return
        self.version += 1

    def lose(self) -> None:
        """Delete the GPUNode. The agent creates it again and writes its status, and then the placer restores the pods."""
        if self.dice.random() < 0.2:
            self.done.add("deleted")
            restored, self.node.allocations = list(self.node.allocations), []
            self.flying, self.resizes, self.version = None, (), self.version + 1
            self.hear()
            self.resizes = self.node.resizing.apply(GpuNode("node-a"))
            self.node.allocations, self.version = restored, self.version + 2

    def go_back(self) -> None:
        """Restore the GPUNode to a state in which nothing was lent; the agent sees that and writes its status."""
        if self.dice.random() < 0.2:
            self.done.add("went back")
            self.flying, self.resizes, self.version = None, (), self.version + 1
            self.hear()
            self.resizes, self.version = self.node.resizing.apply(self.stored()), self.version + 1
            self.hear()

    def write(self) -> None:
        """Let the agent write the status, one request after another; a write may arrive later."""
        if self.flying is None:
            seen = GpuNode("node-a", allocations=tuple(self.node.seen_allocations or ()), resizes=self.node.resizes)
            self.flying = self.node.resizing.apply(seen), self.seen_version
        if self.dice.random() < 0.6:
            self.arrive()

    def arrive(self) -> None:
        if self.flying is None:
            return
        (entries, version), self.flying = self.flying, None
        if entries and version != self.version:
            return  # a conflict
        if entries != self.resizes:
            self.resizes, self.version = entries, self.version + 1
        if self.dice.random() < 0.7:
            self.hear()

    async def use(self) -> None:
        """Let a process allocate or free memory; if it is refused, it asks and tries again."""
        before = sum(self.held.values())
        await super().use()
        if self.shares and sum(self.held.values()) == before:
            (group,) = self.node.groups.all()
            task = asyncio.create_task(self.node.resizing.lend(group, 0, self.dice.randrange(1, 40)))
            self.asking.add(task)
            task.add_done_callback(self.asking.discard)
            await asyncio.sleep(0)

    async def check(self) -> None:
        counted = tenant.counted_bytes(self.stored(), self.node.allocations[0], 0)
        held = sum(self.held.values())
        if held > counted:
            raise BrokenLawError(f"{held} bytes are in use, and the GPUNode counts {counted}")
        for share in self.shares:
            ((_, most, *_),) = (await share("limits"))["records"]
            if most > counted:
                raise BrokenLawError(f"a process may use {most} bytes, and the GPUNode counts {counted}")
        if said := ledger.violations(self.stored()):
            raise BrokenLawError(*said)
        self.done |= {"lent"} if held > self.share.memory_bytes else set()
        self.done |= {"full"} if ledger.use(self.stored())[GPUS[0]].memory_bytes == MAX else set()


async def live(node: ArbiterNode, seed: int) -> set[str]:
    world = World(node, random.Random(seed), is_limit_fixed=seed % 2 == 0)
    acts: list[Callable[[], Any]] = [world.hear_or_die, world.write_or_die, world.place, world.use, world.use]
    acts += [world.come_or_go, world.come_back, world.restart, world.arrive]
    acts += [] if world.is_limit_fixed else [world.lose, world.go_back]
    for _ in range(STEPS):
        done = world.dice.choice(acts)()
        if done is not None:
            await done
        await world.check()
    return world.done


async def lives(directory: Path, seeds: Iterable[int]) -> set[str]:
    done: set[str] = set()
    for seed in seeds:
        (directory / str(seed)).mkdir()
        async with arbiter_node.opened(directory / str(seed)) as node:
            done |= await live(node, seed)
    return done


@pytest.mark.slow
async def test_no_byte_is_lent_that_the_ledger_has_given_to_another_share(short_path: Path) -> None:
    done = await lives(short_path, sorted({0, 3, *FIRST.values()}))
    assert done >= {"lent", "full", "placed", "left", "gave up", "grew", "asked", "restarted", "killed"}
    assert done >= {"limited", "deleted", "went back"}


async def test_nothing_is_lent_before_a_lower_amount_has_arrived_in_the_status() -> None:
    now = 0.0
    share = GivenShare(("main",), (GPUS[0],), 10, 100, OWN, memory_limit_bytes=LIMIT)
    entry = Allocation("a1", PodRef("default", "trainer", "u-1"), (share,))
    lent = GpuNode("node-a", allocations=(entry,), resizes=(Resize("a1", 0, 60, 60),))
    returned = dataclasses.replace(lent, resizes=())
    grants = (tenant.Grant(GPUS[0], 60, 10, 100),)
    holder = tenant.Tenant("u-1", "default", "trainer", ("main",), 0, grants, allocation="a1", memory_limit_bytes=LIMIT)
    with contextlib.closing(ShareLedger.make(holder)) as running:
        lender = lending.Lender(lambda: now)
        assert lender.decide(running, lent, entry, {GPUS[0]: 40}) == 60
        now = lending.KEPT_SECONDS
        assert lender.decide(running, lent, entry, {GPUS[0]: 40}) == OWN  # nothing is in use
        running.update(dataclasses.replace(holder, grants=(dataclasses.replace(grants[0], memory_bytes=OWN),)))
        assert lender.ask(running.tenant, 20, 10) is not None
        assert lender.decide(running, lent, entry, {GPUS[0]: 40}) == OWN
        assert lender.decide(running, returned, entry, {GPUS[0]: 80}) == 32


@pytest.fixture
def trainer() -> Iterator[ShareLedger]:
    """The running share of `entry_of`."""
    grants = (tenant.Grant(GPUS[0], OWN, 10, 100),)
    holder = tenant.Tenant("u-1", "default", "trainer", ("main",), 0, grants, allocation="a1", memory_limit_bytes=LIMIT)
    with contextlib.closing(ShareLedger.make(holder)) as running:
        yield running


def entry_of(*, shrink_to: int | None = None) -> Allocation:
    share = GivenShare(("main",), (GPUS[0],), 10, 100, OWN, shrink_to_bytes=shrink_to, memory_limit_bytes=LIMIT)
    return Allocation("a1", PodRef("default", "trainer", "u-1"), (share,))


async def test_processes_that_ask_at_once_all_get_what_they_need(trainer: ShareLedger) -> None:
    entry, lender = entry_of(), lending.Lender(lambda: 0.0)
    node = GpuNode("node-a", allocations=(entry,))
    waiting = [lender.ask(trainer.tenant, OWN, refused) for refused in (12, 12, 50, 8)]
    assert None not in waiting
    assert lender.decide(trainer, node, entry, {GPUS[0]: 80}) == OWN + 12 + 12 + 8, "the third does not fit as well"


async def test_a_process_of_a_share_that_is_to_shrink_does_not_wait(trainer: ShareLedger) -> None:
    entry, lender = entry_of(shrink_to=10), lending.Lender(lambda: 0.0)
    node, free = GpuNode("node-a", allocations=(entry,)), {GPUS[0]: 80}
    waiting = lender.ask(trainer.tenant, OWN, 12)
    assert waiting is not None
    assert lender.decide(trainer, node, entry, free) == 10
    lender.answer(trainer.tenant)
    assert waiting.done()
    assert free == {GPUS[0]: 80}, "other shares may be lent it"


MUTATIONS: dict[str, tuple[object, str, object]] = {
    "memory of other shares is lent": (lending, "free_bytes", lambda *_: {GPUS[0]: MAX}),
    "pages of earlier agents are ignored": (ShareLedger, "outdated", False),
    "memory in use beyond a restored amount is forgotten": (
        share_resizing.ShareResizer,
        "_unenforced_bytes",
        lambda *_: 0,
    ),
    "a deleted GPUNode's loans are forgotten": (share_resizing.ShareResizer, "_orphaned", lambda *_: ()),
}
# The life to begin at: it breaks a law each time.
FIRST = dict(zip(MUTATIONS, (8, 0, 37, 5), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_breaking_the_code_breaks_a_law(short_path: Path, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[mutation])
    with pytest.raises(BrokenLawError):
        await lives(short_path, range(FIRST[mutation], FIRST[mutation] + 20))
