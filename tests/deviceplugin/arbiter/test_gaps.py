"""Gaps: a gang that has nothing to launch on one of its GPUs for a while, which share gets the GPU then, and which
pays.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.arbiter.scheduling.account import Entitlement
from deviceplugin.arbiter.scheduling.coscheduled_gpu import CoscheduledGpu
from deviceplugin.arbiter.scheduling.gangs import Gangs
from deviceplugin.arbiter.scheduling.gpu_share import Command, IdleTime, LeasePhase, Open, Revoke
from deviceplugin.arbiter.scheduling.lease_scheduler import Lengths
from tests.deviceplugin.arbiter.virtual_gpu import MS
from tests.deviceplugin.arbiter.virtual_node import KERNEL_NS, Tenant, VirtualNode

LENGTHS = Lengths()
HALF = Entitlement(50, 100)
SECONDS = 3


class Turn:
    """A turn of a gang of two GPUs, with a share that waits on the second one, on the test's clock."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.gpus = {uuid: CoscheduledGpu() for uuid in ("0", "1")}
        self.gangs = Gangs(self.gpus)
        for uuid, gpu in self.gpus.items():
            self._done(gpu.join("gang", HALF, 0))
            self.gangs.join("gang", uuid, 0, uuids=["0", "1"])
        self._done(self.gpus["1"].join("other", HALF, 0))
        for uuid in self.gpus:
            assert self.says("want", "gang", uuid) == [Open("gang")]
        assert self.says("want", "other", "1") == []

    def says(self, what: str, key: str, uuid: str = "1") -> list[Command]:
        return self._done(getattr(self.gpus[uuid], what)(key, self.now_ns))

    def until(self, milliseconds: float) -> list[Command]:
        """Let time pass in steps of a millisecond, with timers."""
        commands: list[Command] = []
        while (due := min(filter(None, (gpu.due_ns() for gpu in self.gpus.values())), default=0)) and (
            due <= milliseconds * MS
        ):
            self.now_ns = max(self.now_ns, due)
            for gpu in self.gpus.values():
                commands += self._done(gpu.tick(self.now_ns))
        self.now_ns = int(milliseconds * MS)
        return commands

    def gap(self, milliseconds: float) -> float:
        """Let the gang be idle for a time. Return after how long the other share could launch, or that time."""
        began_ms = self.now_ns / MS
        commands = self.says("released", "gang")
        for tenth in range(1, int(milliseconds * 10) + 1):
            if commands:
                break
            commands = self.until(began_ms + tenth / 10)
        lent_ms = self.now_ns / MS - began_ms
        self.until(began_ms + milliseconds)
        if not commands:
            assert self.says("want", "gang") == [Open("gang")]
            return milliseconds
        assert commands == [Open("other")]
        assert self.says("want", "gang") == [Revoke("other")]
        assert self.says("released", "other") == [Open("gang")]
        self.says("want", "other")
        return lent_ms

    def _done(self, commands: list[Command]) -> list[Command]:
        while more := [command for _, command in self.gangs.settle(self.now_ns)]:
            commands = [*commands, *more]
        return commands


def test_a_gpu_that_was_wanted_back_soon_is_reserved_the_next_time() -> None:
    turn = Turn()
    assert turn.gap(6) == pytest.approx(LENGTHS.lend_ns / MS, abs=0.1)
    assert [turn.gap(6) for _ in range(4)] == [6] * 4


def test_long_gaps_are_lent_and_as_early_as_at_first() -> None:
    turn = Turn()
    turn.gap(6)
    lent = [turn.gap(18) for _ in range(4)]
    assert lent[0] <= LENGTHS.worth_ns / MS + 0.1
    assert lent == sorted(lent, reverse=True)
    assert lent[-1] == pytest.approx(LENGTHS.lend_ns / MS, abs=0.1)


def test_a_gang_pays_for_a_gpu_that_is_reserved_for_it() -> None:
    turn = Turn()
    turn.gap(6)
    account = turn.gpus["1"].shares["gang"].account
    before_ns = account.held_by_ns(turn.now_ns)
    assert turn.gap(6) == 6
    assert account.held_by_ns(turn.now_ns) - before_ns == 6 * MS
    turn.says("remove", "other")
    before_ns = account.held_by_ns(turn.now_ns)
    turn.says("released", "gang")
    turn.until(turn.now_ns / MS + 5)
    assert account.held_by_ns(turn.now_ns) == before_ns  # no borrower


def test_a_gangs_turn_ends_on_an_occasionally_used_gpu_if_only_others_are_wanted() -> None:
    turn = Turn()
    turn.gap(6)
    while turn.gpus["1"].reserved_for is not None and turn.now_ns < 1000 * MS:
        turn.until(turn.now_ns / MS + 1)
        turn.says("released", "gang")
        turn.until(turn.now_ns / MS + 5)
        if turn.gpus["0"].shares["gang"].phase is LeasePhase.REVOKED:
            turn.says("released", "gang", "0")
        else:
            turn.says("want", "gang")
    assert turn.now_ns <= 300 * MS
    assert turn.gpus["1"].holder == "other"


def test_a_gap_cut_short_by_the_end_of_a_turn_does_not_count_as_short() -> None:
    idle = IdleTime()
    idle.begin(0)
    idle.interrupt(5 * MS, 10 * MS)
    assert idle.patience_ns == 0
    idle.begin(0)
    idle.end(5 * MS, 10 * MS)
    assert idle.patience_ns == 10 * MS
    idle.begin(0)
    idle.interrupt(20 * MS, 10 * MS)
    assert idle.patience_ns == 5 * MS


def steps(tenants: dict[str, Tenant]) -> dict[str, float]:
    """Return each share's completed steps, in percent of its steps when alone."""
    node = VirtualNode(2, tenants)
    node.run(400)
    before = {key: tenant.steps for key, tenant in tenants.items()}
    node.run(SECONDS * 1000)
    return {
        key: 100 * (tenant.steps - before[key]) * (KERNEL_NS + tenant.tail_ns) / (SECONDS * 1000 * MS)
        for key, tenant in tenants.items()
    }


def beside(gang: Tenant, *gpus: int) -> dict[str, Tenant]:
    """Add a share on each of these GPUs, with kernels of 6 ms."""
    return {"gang": gang} | {f"on {gpu}": Tenant((gpu,), HALF, tail_ns=4 * MS) for gpu in gpus}


@pytest.mark.slow
def test_a_gang_that_needs_a_gpu_occasionally_does_not_wait_for_it() -> None:
    got = steps(beside(Tenant((0, 1), HALF, tail_ns=5 * MS), 0, 1))
    assert got["gang"] >= 40  # it would be 32 if the GPU were lent in each of its gaps
    assert min(got["on 0"], got["on 1"]) >= 46


@pytest.mark.slow
def test_a_gpu_that_a_gang_leaves_idle_for_long_serves_others() -> None:
    got = steps(beside(Tenant((0, 1), HALF, tail_ns=40 * MS), 0, 1))
    assert got["on 1"] >= 65


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "again_ms"), [((0,), 3), ((0, 1), 6)])
def test_a_gang_stopped_between_two_launches_on_a_gpu_continues_at_once(gpus: tuple[int, ...], again_ms: int) -> None:
    """The first kernel waits for work on another GPU that its thread launches after the second one."""
    gang = Tenant((0, 1), HALF, tail_ns=1 * MS, again_ns=again_ms * MS)
    node = VirtualNode(2, beside(gang, *gpus))
    late, longest, before, since_ns = 0, 0, 0, 0
    while node.now_ns < 2000 * MS:
        node.run(1)
        late += any(turns.shares["gang"].phase is LeasePhase.LATE for turns in node.turns.values())
        if gang.steps > before:
            before, since_ns = gang.steps, node.now_ns
        longest = max(longest, node.now_ns - since_ns)
    assert not late
    assert longest < 150 * MS


@pytest.mark.slow
@settings(max_examples=8)
@given(st.integers(0, 12), st.integers(1, 9), st.sampled_from([(1,), (0, 1)]))
def test_other_shares_get_their_requests_whatever_the_gaps(tail: int, request: int, gpus: tuple[int, ...]) -> None:
    tenants = {"gang": Tenant((0, 1), Entitlement(100 - 10 * request, 100), tail_ns=tail * MS)}
    tenants |= {f"on {gpu}": Tenant((gpu,), Entitlement(10 * request, 100)) for gpu in gpus}
    got = steps(tenants)
    assert all(got[f"on {gpu}"] >= 10 * request - 8 for gpu in gpus), got
