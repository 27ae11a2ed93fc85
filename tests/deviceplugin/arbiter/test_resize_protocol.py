"""Placer, agent and processes act in any order, lag, die or are silent, and no memory is ever given twice.

The arbiter's ledgers, its records on disk, its restart, and the processes with their pages are real. Drawn at random
are the order of actions, how much each party has seen, and which answers are lost.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.share_ledger import ShareLedger
from gpushare.gpunode import GpuNode, Resize
from tests.deviceplugin import arbiter_node
from tests.deviceplugin.arbiter_node import ArbiterNode, Share

pytestmark = pytest.mark.slow

STEPS = 400
MAX = 100


class BrokenLawError(AssertionError):
    """A law does not hold."""


class KilledError(Exception):
    """The agent is killed during an action."""


class World:
    """One share of one pod on one GPU of MAX bytes, with placer, agent and processes."""

    def __init__(self, node: ArbiterNode, dice: random.Random) -> None:
        self.node, self.dice = node, dice
        self.resizes: tuple[Resize, ...] = ()  # in the GPUNode; `node.resizes` is what the agent has seen
        self.version = self.seen_version = 0
        self.shares: list[Share] = []
        self.away: list[Share] = []  # processes that have not reconnected since the agent's restart
        self.held: dict[Share, int] = {}
        self.done: set[str] = set()
        node.writes_status = False
        node.add_pod("trainer", memory=50)
        self.hear()

    @property
    def share(self) -> Any:
        return self.node.allocations[0].shares[0]

    def hear(self) -> None:
        """Let the agent's informer catch up."""
        if self.version >= self.seen_version:
            self.node.seen_allocations = list(self.node.allocations)
            self.node.resizes, self.seen_version = self.resizes, self.version
            self.node.resizing.refresh()

    def write(self) -> None:
        """Let the agent write the status; the answer may be lost."""
        seen = GpuNode("node-a", allocations=tuple(self.node.seen_allocations or ()), resizes=self.node.resizes)
        entries = self.node.resizing.apply(seen)
        if entries and self.seen_version != self.version:
            return  # a conflict
        if entries != self.resizes:
            self.resizes, self.version = entries, self.version + 1
        if self.dice.random() < 0.7:
            self.hear()

    async def hear_or_die(self) -> None:
        await self._dying(self.hear)

    async def write_or_die(self) -> None:
        await self._dying(self.write)

    async def _dying(self, act: Callable[[], None]) -> None:
        """Run the action, and perhaps kill the agent right before or after a disk write."""
        groups = self.node.groups
        record = groups.record

        def record_or_die(*what: Any) -> bool:
            if self.dice.random() < 0.1:
                raise KilledError
            kept = record(*what)
            if self.dice.random() < 0.1:
                raise KilledError
            return kept

        groups.record = record_or_die  # type: ignore[method-assign]
        try:
            act()
        except KilledError:
            self.done.add("killed")
            await self._begin_again()
        finally:
            vars(groups).pop("record", None)

    def place(self) -> None:
        """Let the placer read and write."""
        share, now = self.share, {resize.memory_bytes for resize in self.resizes}
        if share.shrink_to_bytes is not None and now == {share.shrink_to_bytes}:
            self._put("gave up", memory_bytes=share.shrink_to_bytes, shrink_to_bytes=None)
        elif self.dice.random() < 0.3:
            self._put("grew", memory_bytes=self.dice.randrange(share.memory_bytes, MAX + 1))
        elif share.shrink_to_bytes is not None and self.dice.random() < 0.5:
            self._put("took back", shrink_to_bytes=None)
        elif share.memory_bytes > 10:
            # Use few sizes, so that earlier ones recur.
            self._put("asked", shrink_to_bytes=self.dice.randrange(10, share.memory_bytes, 10))

    def _put(self, what: str, **amounts: Any) -> None:
        self.done.add(what)
        entry = self.node.allocations[0]
        after = dataclasses.replace(self.share, **amounts)
        if after.shrink_to_bytes is not None and after.shrink_to_bytes >= after.memory_bytes:
            return
        self.node.allocations[0] = dataclasses.replace(entry, shares=(after,))
        self.version += 1

    async def use(self) -> None:
        """Let a process allocate or free memory."""
        if not self.shares:
            return
        process = self.dice.choice(self.shares)
        if self.dice.random() < 0.6:
            amount = self.dice.randrange(1, 40)
            if await process("take", 0, amount):
                self.held[process] += amount
        elif self.held[process]:
            amount = self.dice.randrange(1, self.held[process] + 1)
            await process("charge", 0, -amount)
            self.held[process] -= amount

    async def come_or_go(self) -> None:
        """Start or kill a process."""
        if len(self.shares) < 3:
            process = await self.node.share()
            await process("hello")
            self.shares.append(process)
            self.held[process] = 0
        elif self.dice.random() < 0.3:
            process = self.shares.pop(self.dice.randrange(3))
            await process.kill()
            del self.held[process]
            self.away = [peer for peer in self.away if peer is not process]
            for group in self.node.groups.all():
                self.node.groups.reap(group)

    async def restart(self) -> None:
        """Kill the agent without a last write, and start it again."""
        if self.dice.random() < 0.2:
            self.done.add("restarted")
            await self._begin_again()

    async def _begin_again(self) -> None:
        await self.node.stop()
        await self.node.start()
        self.away = list(self.shares)

    async def come_back(self) -> None:
        """Let a process reconnect: it gets new pages, uses them, and then sends a message."""
        if self.away:
            process = self.away.pop(self.dice.randrange(len(self.away)))
            await process("close")
            await process("hello")
            await process("reclaim")

    async def check(self) -> None:
        """Check the laws."""
        held = sum(self.held.values())
        if held > self.share.memory_bytes:
            raise BrokenLawError(f"{held} bytes are in use of {self.share}")
        sizes = {resize.memory_bytes for resize in self.resizes}
        for share in self.shares:
            ((_, most, *_),) = (await share("limits"))["records"]
            if sizes and most > min(sizes):
                raise BrokenLawError(f"a process goes by {most} bytes, and {self.resizes} is told")


async def live(node: ArbiterNode, seed: int) -> set[str]:
    """Run STEPS random actions, and return the kinds of events that happened."""
    world = World(node, random.Random(seed))
    acts: list[Callable[[], Any]] = [world.hear_or_die, world.write_or_die, world.place, world.use, world.use]
    acts += [world.come_or_go, world.come_back, world.restart]
    for _ in range(STEPS):
        done = world.dice.choice(acts)()
        if done is not None:
            await done
        await world.check()
    return world.done


async def lives(directory: Path, count: int) -> set[str]:
    """Run several lives in sequence, and return the kinds of events that happened."""
    done: set[str] = set()
    for seed in range(count):
        (directory / str(seed)).mkdir()
        async with arbiter_node.opened(directory / str(seed)) as node:
            done |= await live(node, seed)
    return done


async def test_no_byte_is_used_that_the_ledger_has_given_to_another_share(short_path: Path) -> None:
    done = await lives(short_path, 4)
    assert done == {"gave up", "grew", "took back", "asked", "restarted", "killed"}


def _forgetful(node: GpuNode, entry: Any, position: int) -> int:
    share = entry.shares[position]
    return min(share.memory_bytes, share.memory_bytes if share.shrink_to_bytes is None else share.shrink_to_bytes)


MUTATIONS: dict[str, tuple[object, str, object]] = {
    "the published limit is ignored": (tenant, "memory_bytes", _forgetful),
    "pages of earlier agents are ignored": (ShareLedger, "outdated", False),
    "memory in use is ignored": (ShareLedger, "held_bytes", lambda _: 0),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_breaking_the_code_breaks_a_law(short_path: Path, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[mutation])
    with pytest.raises(BrokenLawError):
        await lives(short_path, 12)
