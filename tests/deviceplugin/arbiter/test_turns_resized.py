"""Requests and limits change during leases, waits and debts, on the virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.arbiter.scheduling import lease_scheduler
from deviceplugin.arbiter.scheduling.account import Account, Entitlement, PayingAccount
from tests.deviceplugin.arbiter import virtual_gpu
from tests.deviceplugin.arbiter.virtual_gpu import MS, SECOND, BrokenLawError, VirtualGpu, Worker

WINDOW = 10 * SECOND
Changes = list[tuple[int, str, Entitlement]]


def check(workers: list[Worker], changes: Changes, *, seconds: int = 15) -> VirtualGpu:
    """Run the workers through the changes, and check each share's last amounts from their change on."""
    gpu = VirtualGpu(workers)
    for when_ns, key, given_then in changes:
        gpu.give(when_ns, key, given_then)
    gpu.run(seconds * SECOND)
    count = sum(worker.given.request_percent > 0 for worker in workers)
    ahead_ns = 60 * MS + 60 * MS * (len(workers) - 1)
    virtual_gpu.check_ceiling(gpu, SECOND, ahead_ns)
    virtual_gpu.check_ceiling(gpu, WINDOW, ahead_ns)
    virtual_gpu.check_floor(gpu, WINDOW, 170 * MS * (count + 1))
    for key, seat in gpu.turns.shares.items():
        if seat.account.held_ns != virtual_gpu.within(gpu.charged[key], 0, gpu.now_ns):
            raise BrokenLawError(f"{key} was charged what it did not have")
    return gpu


@st.composite
def resized(draw: st.DrawFn) -> tuple[list[Worker], Changes]:
    """Draw workers and later amounts, which never exceed the GPU."""

    def amounts() -> list[tuple[int, int]]:
        left, pairs = 100, []
        for _ in range(count):
            request = draw(st.sampled_from([percent for percent in (0, 5, 10, 30, 50, 80, 100) if percent <= left]))
            left -= request
            pairs.append((request, draw(st.sampled_from([cap for cap in (10, 30, 50, 100, 100) if cap >= request]))))
        return pairs

    count = draw(st.integers(1, 4))
    span = st.integers(20, 400).map(lambda ms: ms * MS)
    workers = [
        Worker(
            Entitlement(*amount, latency=draw(st.integers(0, 4)) == 0),
            drain_ns=draw(st.integers(0, 5)) * MS,
            bursts=tuple(draw(st.lists(st.tuples(span, span), max_size=2))),
            closes=draw(st.booleans()),
        )
        for amount in amounts()
    ]
    # Draw every millisecond of a turn, so that changes hit every phase.
    when_ns = draw(st.integers(2000, 2200)) * MS
    later = [Entitlement(*amount, latency=draw(st.booleans())) for amount in amounts()]
    return workers, [(when_ns, str(number), entitlement) for number, entitlement in enumerate(later)]


@pytest.mark.slow
@settings(max_examples=12)
@given(resized())
def test_after_a_change_every_share_gets_its_new_request_within_its_new_limit(
    drawn: tuple[list[Worker], Changes],
) -> None:
    check(*drawn)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([(30, 100), (70, 100)], [(70, 100), (30, 100)], [70, 30]),
        ([(50, 100), (50, 100)], [(10, 10), (50, 100)], [10, 90]),
        ([(10, 10), (50, 50)], [(10, 100), (50, 50)], [50, 50]),
        ([(0, 100), (100, 100)], [(50, 100), (50, 100)], [50, 50]),
        ([(20, 100)], [(20, 20)], [20]),
    ],
)
def test_a_busy_share_gets_its_new_part_within_a_second_of_the_change(
    before: list[tuple[int, int]], after: list[tuple[int, int]], expected: list[float]
) -> None:
    changes = [(5 * SECOND + 17 * MS, str(number), Entitlement(*pair)) for number, pair in enumerate(after)]
    gpu = check([Worker(Entitlement(*pair)) for pair in before], changes, seconds=17)
    assert virtual_gpu.shares(gpu, 6 * SECOND, 16 * SECOND) == pytest.approx(expected, abs=1.5)


def test_a_lower_limit_ends_the_current_turn() -> None:
    gpu = VirtualGpu([Worker(Entitlement(10, 100))])
    gpu.give(2 * SECOND + MS, "0", Entitlement(10, 10))
    gpu.run(3 * SECOND)
    # The new limit's burst, and the time to return the GPU; a turn without competition lasts 100 ms.
    assert virtual_gpu.within(gpu.charged["0"], 2 * SECOND + MS, 2 * SECOND + 90 * MS) < 60 * MS
    assert virtual_gpu.within(gpu.charged["0"], 2 * SECOND + MS, 3 * SECOND) < 0.1 * SECOND + 60 * MS


def test_a_change_neither_forgives_nor_increases_a_debt() -> None:
    books = Account(Entitlement(50, 50), 0)
    books.set(0, wanting=True, charge=PayingAccount.OWED)
    books.set(4 * SECOND, charge=PayingAccount.NOTHING)  # a kernel of four seconds
    before = (books.owed_ns, books.room_ns, books.surplus_ns, books.held_ns)
    books.change(Entitlement(10, 20), 4 * SECOND)
    assert (books.owed_ns, books.room_ns, books.surplus_ns, books.held_ns) == before
    # It had two seconds more than its limit, and pays them back at its current limit.
    assert books.eligible_in_ns() == pytest.approx(10 * SECOND, rel=0.05)
    books.change(Entitlement(10, 40), 4 * SECOND)
    assert books.eligible_in_ns() == pytest.approx(5 * SECOND, rel=0.05)


def test_time_owed_by_an_earlier_request_runs_down_gradually() -> None:
    books = Account(Entitlement(80, 100), 0)
    books.set(0, wanting=True)
    books.pass_time(20 * SECOND)
    assert books.owed_ns == 8 * SECOND
    books.change(Entitlement(10, 100), 20 * SECOND)
    assert books.owed_ns == 8 * SECOND
    books.pass_time(21 * SECOND)
    assert books.owed_ns == pytest.approx(7 * SECOND)
    books.pass_time(60 * SECOND)
    assert books.owed_ns == pytest.approx(SECOND)


def test_a_waiting_share_that_joins_the_latency_class_is_served_at_once() -> None:
    gpu = VirtualGpu([Worker(Entitlement(50, 100)), Worker(Entitlement(50, 100), starts_ns=SECOND)])
    gpu.run(2 * SECOND)
    waiting = next(key for key in gpu.workers if key != gpu.turns.holder)
    gpu.give(gpu.now_ns + MS, waiting, Entitlement(50, 100, latency=True))
    gpu.run(gpu.now_ns + 6 * MS)
    assert gpu.turns.holder == waiting


MUTATIONS: dict[str, tuple[object, str, object]] = {
    "a turn keeps the old limit": (lease_scheduler.LeaseScheduler, "_apply_limit", lambda *_: None),
    "a change is ignored": (Account, "change", lambda *_: None),
    "a change forgives debts": (Account, "change", lambda self, entitlement, now: self.__init__(entitlement, now)),
}


def battery() -> None:
    """Run workloads that together exercise every law."""
    test_a_lower_limit_ends_the_current_turn()
    test_a_change_neither_forgives_nor_increases_a_debt()
    check([Worker(Entitlement(30, 100)), Worker(Entitlement(70, 100))], [(2 * SECOND, "0", Entitlement(30, 30))])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_breaking_the_code_breaks_a_law(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[mutation])
    with pytest.raises((BrokenLawError, AssertionError)):
        battery()
