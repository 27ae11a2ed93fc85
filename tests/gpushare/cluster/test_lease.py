"""The leader election rule: a table of its decisions, and every interleaving of two candidates on a bad network."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.cluster import election

TIMING = election.LeaseTiming()
FREE = election.LeaseRecord(holder="", duration_seconds=1, transitions=3, version="7")
MINE = dataclasses.replace(FREE, holder="me", duration_seconds=15)
THEIRS = dataclasses.replace(MINE, holder="other")


@pytest.mark.parametrize(
    ("record", "observed_at", "renewed_at", "expected"),
    [
        pytest.param(None, 100, None, election.Acquire(), id="there is none"),
        pytest.param(FREE, 100, None, election.Acquire(), id="released"),
        pytest.param(MINE, 100, None, election.Acquire(), id="a write of ours whose answer was lost"),
        pytest.param(THEIRS, 100, None, election.Wait(15), id="just renewed by another"),
        pytest.param(THEIRS, 90, None, election.Wait(5), id="silent for 10 s"),
        pytest.param(THEIRS, 85, None, election.Acquire(), id="silent for its whole duration"),
        pytest.param(
            dataclasses.replace(THEIRS, duration_seconds=60), 85, None, election.Wait(45), id="its promise counts"
        ),
        pytest.param(MINE, 100, 98, election.Renew(), id="we lead"),
        pytest.param(
            MINE, 100, 90, election.Lost("it could not be renewed for 10 s"), id="we led for too long unrenewed"
        ),
        pytest.param(THEIRS, 100, 98, election.Lost("other changed it"), id="taken from us"),
        pytest.param(FREE, 100, 98, election.Lost("another client changed it"), id="released by another client"),
        pytest.param(None, 100, 98, election.Lost("the Lease was deleted"), id="deleted"),
    ],
)
def test_each_state_of_the_lease_leads_to_its_decision(
    record: election.LeaseRecord | None, observed_at: float, renewed_at: float | None, expected: election.Decision
) -> None:
    decided = election.decide(record, observed_at=observed_at, now=100.0, me="me", renewed_at=renewed_at, timing=TIMING)
    assert decided == expected


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A process with a separate clock and memory.

    awaited: the number of the write whose answer it waits for.
    """

    offset: float = 0.0
    seen: election.LeaseRecord | None = None
    observed_at: float = 0.0
    renewed_at: float | None = None
    awaited: int = 0

    def leads(self, now: float) -> bool:
        return election.leads(self.renewed_at, now=now + self.offset, timing=TIMING)


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """A write in flight. It takes effect only if the stored record is still the one it was based on."""

    number: int
    by: str
    judged: election.LeaseRecord | None
    began: float


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Two candidates, the stored record, the writes in flight, and the true time, which no candidate's clock shows."""

    a: Candidate
    b: Candidate
    now: float = 0.0
    stored: election.LeaseRecord | None = None
    writes: tuple[Write, ...] = ()
    written: int = 0

    def leaders(self) -> int:
        return self.a.leads(self.now) + self.b.leads(self.now)

    def reads(self, name: str) -> "World":
        """Have a candidate abandon its pending write, read the record, and act on it."""
        candidate: Candidate = dataclasses.replace(getattr(self, name), awaited=0)
        now = self.now + candidate.offset
        if self.stored is None or self.stored != candidate.seen:
            candidate = dataclasses.replace(candidate, seen=self.stored, observed_at=now)
        decided = election.decide(
            self.stored,
            observed_at=candidate.observed_at,
            now=now,
            me=name,
            renewed_at=candidate.renewed_at,
            timing=TIMING,
        )
        if isinstance(decided, election.Lost):
            return dataclasses.replace(self, **{name: dataclasses.replace(candidate, renewed_at=None)})
        if isinstance(decided, election.Wait):
            return dataclasses.replace(self, **{name: candidate})
        number = self.written + 1
        write = Write(number, name, self.stored, now)
        candidate = dataclasses.replace(candidate, awaited=number)
        return dataclasses.replace(self, **{name: candidate}, writes=(*self.writes, write), written=number)

    def deliver(self, write: Write, *, answered: bool) -> "World":
        """Deliver a write to the API server, and optionally the answer to its sender if it still waits for it."""
        rest = dataclasses.replace(self, writes=tuple(other for other in self.writes if other != write))
        if self.stored != write.judged:
            return rest
        version = str(int(self.stored.version) + 1) if self.stored else "1"
        rest = dataclasses.replace(rest, stored=election.LeaseRecord(write.by, TIMING.duration_seconds, 0, version))
        sender: Candidate = getattr(self, write.by)
        if not answered or sender.awaited != write.number:
            return rest
        return dataclasses.replace(rest, **{write.by: dataclasses.replace(sender, renewed_at=write.began, awaited=0)})

    def futures(self) -> Iterator["World"]:
        """Yield every possible next state."""
        for seconds in (4.0, 9.0, 15.0):
            yield dataclasses.replace(self, now=self.now + seconds)
        yield self.reads("a")
        yield self.reads("b")
        for write in self.writes:
            yield self.deliver(write, answered=True)
            yield self.deliver(write, answered=False)


@pytest.mark.slow
def test_no_sequence_of_events_gives_two_leaders() -> None:
    worlds = {World(Candidate(), Candidate(offset=-1e6))}
    ever_led = set()
    for _ in range(7):
        worlds = {future for world in worlds for future in world.futures() if future.now <= 40.0}
        assert max(world.leaders() for world in worlds) <= 1
        ever_led |= {(world.a.leads(world.now), world.b.leads(world.now)) for world in worlds}
    assert ever_led == {(False, False), (True, False), (False, True)}


def read_and_write(world: World, name: str) -> World:
    world = world.reads(name)
    return world.deliver(world.writes[-1], answered=True) if world.writes else world


def test_a_dead_leader_is_replaced_only_after_the_lease_duration() -> None:
    world = read_and_write(World(Candidate(), Candidate(offset=5e5)), "a")
    assert world.a.leads(0.0)
    for now in (1.0, 15.9):
        world = read_and_write(dataclasses.replace(world, now=now), "b")
        assert not world.b.leads(now)
    world = read_and_write(dataclasses.replace(world, now=16.0), "b")
    assert world.b.leads(16.0)


def test_a_released_lease_is_acquired_at_once() -> None:
    world = read_and_write(World(Candidate(), Candidate(), stored=FREE), "b")
    assert world.b.leads(0.0)


@pytest.mark.parametrize("seconds", [(15, 15.0, 2.0), (15, 2.0, 2.0), (15, 10.0, 0.0)])
def test_timings_that_allow_two_leaders_are_rejected(seconds: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="a lease needs retry"):
        election.LeaseTiming(*seconds)


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseDurationSeconds": None}])
def test_an_empty_lease_is_free_and_gets_our_duration(spec: dict[str, Any] | None) -> None:
    record = election.read({"metadata": {"resourceVersion": "1"}, "spec": spec}, timing=TIMING)
    assert (record.holder, record.duration_seconds, record.transitions) == ("", 15, 0)


def test_acquiring_counts_a_transition_and_renewing_does_not() -> None:
    taken = election.held({"holderIdentity": "other", "leaseTransitions": 4}, me="me", time="t1", timing=TIMING)
    renewed = election.held(taken, me="me", time="t2", timing=TIMING)
    assert (taken["leaseTransitions"], renewed["leaseTransitions"]) == (5, 5)
    assert (renewed["acquireTime"], renewed["renewTime"]) == ("t1", "t2")
    assert election.released(renewed, time="t3")["holderIdentity"] == ""
