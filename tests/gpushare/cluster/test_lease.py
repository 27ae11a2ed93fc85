"""The rule for leading: a table of its decisions, and every interleaving of a few candidates with a bad network."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.cluster import lease

TIMING = lease.LeaseTiming()
FREE = lease.LeaseRecord(holder="", duration_seconds=1, transitions=3, version="7")
MINE = dataclasses.replace(FREE, holder="me", duration_seconds=15)
THEIRS = dataclasses.replace(MINE, holder="other")


@pytest.mark.parametrize(
    ("record", "observed_at", "renewed_at", "expected"),
    [
        pytest.param(None, 100, None, lease.Acquire(), id="there is none"),
        pytest.param(FREE, 100, None, lease.Acquire(), id="released"),
        pytest.param(MINE, 100, None, lease.Acquire(), id="a write of ours whose answer was lost"),
        pytest.param(THEIRS, 100, None, lease.Wait(15), id="just renewed by another"),
        pytest.param(THEIRS, 90, None, lease.Wait(5), id="silent for 10 s"),
        pytest.param(THEIRS, 85, None, lease.Acquire(), id="silent for its whole duration"),
        pytest.param(
            dataclasses.replace(THEIRS, duration_seconds=60), 85, None, lease.Wait(45), id="its promise counts"
        ),
        pytest.param(MINE, 100, 98, lease.Renew(), id="we lead"),
        pytest.param(MINE, 100, 90, lease.Lost("it could not be renewed for 10 s"), id="we led for too long unrenewed"),
        pytest.param(THEIRS, 100, 98, lease.Lost("other changed it"), id="taken from us"),
        pytest.param(FREE, 100, 98, lease.Lost("another client changed it"), id="released by somebody"),
        pytest.param(None, 100, 98, lease.Lost("the Lease was deleted"), id="deleted"),
    ],
)
def test_decisions(
    record: lease.LeaseRecord | None, observed_at: float, renewed_at: float | None, expected: lease.Decision
) -> None:
    decided = lease.decide(record, observed_at=observed_at, now=100.0, me="me", renewed_at=renewed_at, timing=TIMING)
    assert decided == expected


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A process with a clock of its own, and what it remembers; `awaited`: the write it waits for an answer to."""

    offset: float = 0.0
    seen: lease.LeaseRecord | None = None
    observed_at: float = 0.0
    renewed_at: float | None = None
    awaited: int = 0

    def leads(self, now: float) -> bool:
        return lease.leads(self.renewed_at, now=now + self.offset, timing=TIMING)


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """A write on its way; it takes effect only if the record is still the one that was judged."""

    number: int
    by: str
    judged: lease.LeaseRecord | None
    began: float


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Candidates, the stored record, and writes on their way, at a time that none of the candidates' clocks shows."""

    a: Candidate
    b: Candidate
    now: float = 0.0
    stored: lease.LeaseRecord | None = None
    writes: tuple[Write, ...] = ()
    written: int = 0

    def leaders(self) -> int:
        return self.a.leads(self.now) + self.b.leads(self.now)

    def looks(self, name: str) -> "World":
        """One gives up on a write that it still awaits, looks at the record, and acts on it."""
        candidate: Candidate = dataclasses.replace(getattr(self, name), awaited=0)
        now = self.now + candidate.offset
        if self.stored is None or self.stored != candidate.seen:
            candidate = dataclasses.replace(candidate, seen=self.stored, observed_at=now)
        decided = lease.decide(
            self.stored,
            observed_at=candidate.observed_at,
            now=now,
            me=name,
            renewed_at=candidate.renewed_at,
            timing=TIMING,
        )
        if isinstance(decided, lease.Lost):
            return dataclasses.replace(self, **{name: dataclasses.replace(candidate, renewed_at=None)})
        if isinstance(decided, lease.Wait):
            return dataclasses.replace(self, **{name: candidate})
        number = self.written + 1
        write = Write(number, name, self.stored, now)
        candidate = dataclasses.replace(candidate, awaited=number)
        return dataclasses.replace(self, **{name: candidate}, writes=(*self.writes, write), written=number)

    def arrives(self, write: Write, *, answered: bool) -> "World":
        """A write reaches the API server; perhaps the answer reaches its sender too, if that still waits for it."""
        rest = dataclasses.replace(self, writes=tuple(other for other in self.writes if other != write))
        if self.stored != write.judged:
            return rest
        version = str(int(self.stored.version) + 1) if self.stored else "1"
        rest = dataclasses.replace(rest, stored=lease.LeaseRecord(write.by, TIMING.duration_seconds, 0, version))
        sender: Candidate = getattr(self, write.by)
        if not answered or sender.awaited != write.number:
            return rest
        return dataclasses.replace(rest, **{write.by: dataclasses.replace(sender, renewed_at=write.began, awaited=0)})

    def futures(self) -> Iterator["World"]:
        """Everything that can happen next."""
        for seconds in (4.0, 9.0, 15.0):
            yield dataclasses.replace(self, now=self.now + seconds)
        yield self.looks("a")
        yield self.looks("b")
        for write in self.writes:
            yield self.arrives(write, answered=True)
            yield self.arrives(write, answered=False)


@pytest.mark.slow
def test_in_no_course_of_events_are_there_two_leaders() -> None:
    worlds = {World(Candidate(), Candidate(offset=-1e6))}
    ever_led = set()
    for _ in range(7):
        worlds = {future for world in worlds for future in world.futures() if future.now <= 40.0}
        assert max(world.leaders() for world in worlds) <= 1
        ever_led |= {(world.a.leads(world.now), world.b.leads(world.now)) for world in worlds}
    assert ever_led == {(False, False), (True, False), (False, True)}


def look_and_write(world: World, name: str) -> World:
    world = world.looks(name)
    return world.arrives(world.writes[-1], answered=True) if world.writes else world


def test_a_dead_leader_is_replaced_after_its_duration_and_no_earlier() -> None:
    world = look_and_write(World(Candidate(), Candidate(offset=5e5)), "a")
    assert world.a.leads(0.0)
    for now in (1.0, 15.9):
        world = look_and_write(dataclasses.replace(world, now=now), "b")
        assert not world.b.leads(now)
    world = look_and_write(dataclasses.replace(world, now=16.0), "b")
    assert world.b.leads(16.0)


def test_a_released_lease_is_taken_at_once() -> None:
    world = look_and_write(World(Candidate(), Candidate(), stored=FREE), "b")
    assert world.b.leads(0.0)


@pytest.mark.parametrize("seconds", [(15, 15.0, 2.0), (15, 2.0, 2.0), (15, 10.0, 0.0)])
def test_timings_that_allow_two_leaders_are_refused(seconds: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="a lease needs retry"):
        lease.LeaseTiming(*seconds)


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseDurationSeconds": None}])
def test_an_empty_lease_is_free_and_its_missing_duration_is_ours(spec: dict[str, Any] | None) -> None:
    record = lease.read({"metadata": {"resourceVersion": "1"}, "spec": spec}, timing=TIMING)
    assert (record.holder, record.duration_seconds, record.transitions) == ("", 15, 0)


def test_taking_over_counts_a_transition_and_renewing_does_not() -> None:
    taken = lease.held({"holderIdentity": "other", "leaseTransitions": 4}, me="me", time="t1", timing=TIMING)
    renewed = lease.held(taken, me="me", time="t2", timing=TIMING)
    assert (taken["leaseTransitions"], renewed["leaseTransitions"]) == (5, 5)
    assert (renewed["acquireTime"], renewed["renewTime"]) == ("t1", "t2")
    assert lease.released(renewed, time="t3")["holderIdentity"] == ""
