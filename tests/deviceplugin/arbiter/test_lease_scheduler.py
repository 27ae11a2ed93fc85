"""The laws of scheduling, for random workloads on a virtual clock; and a proof that breaking the code breaks a law."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.arbiter.scheduling import account, lease_scheduler
from deviceplugin.arbiter.scheduling.account import Account, Entitlement, PayingAccount
from deviceplugin.arbiter.scheduling.gpu_share import Command, Open, Revoke
from deviceplugin.arbiter.scheduling.lease_scheduler import LeaseScheduler, Lengths
from tests.deviceplugin.arbiter import virtual_gpu
from tests.deviceplugin.arbiter.virtual_gpu import MS, SECOND, BrokenLawError, VirtualGpu, Worker

pytestmark = pytest.mark.slow

WINDOW = 10 * SECOND


def check(workers: list[Worker], *, seconds: int = 12) -> VirtualGpu:
    """Run the workers, and check every law."""
    gpu = VirtualGpu(workers)
    gpu.run(seconds * SECOND)
    # The credit of the other shares, and one turn of each.
    count = sum(worker.given.request_percent > 0 for worker in workers)
    virtual_gpu.check_floor(gpu, WINDOW, 170 * MS * (count + 1))
    # The burst, and the time owed if the share had to wait for it.
    virtual_gpu.check_ceiling(gpu, WINDOW, 60 * MS + 60 * MS * (len(workers) - 1))
    virtual_gpu.check_ceiling(gpu, SECOND, 60 * MS + 60 * MS * (len(workers) - 1))
    virtual_gpu.check_waits(gpu, 3500 * MS)
    return gpu


@st.composite
def workloads(draw: st.DrawFn) -> list[Worker]:
    left, workers = 100, []
    for _ in range(draw(st.integers(1, 5))):
        request = draw(st.sampled_from([share for share in (0, 5, 10, 20, 30, 50, 70, 90, 100) if share <= left]))
        left -= request
        limit = draw(st.sampled_from([share for share in (10, 30, 50, 70, 100, 100, 100) if share >= request] or [100]))
        span = st.integers(1, 400).map(lambda ms: ms * MS)
        workers.append(
            Worker(
                Entitlement(request, limit, latency=draw(st.integers(0, 3)) == 0),
                drain_ns=draw(st.integers(0, 5)) * MS,
                bursts=tuple(draw(st.lists(st.tuples(span, span), max_size=3))),
                starts_ns=draw(st.integers(0, 2000)) * MS,
                closes=draw(st.booleans()),
                closes_ns=draw(st.integers(0, 2)) * MS,
            )
        )
    return workers


@settings(max_examples=25)
@given(workloads())
def test_every_share_gets_its_request_and_stays_below_its_limit(workers: list[Worker]) -> None:
    check(workers)


@pytest.mark.parametrize(
    ("given_percent", "expected"),
    [
        ([(30, 100), (70, 100)], [30, 70]),
        ([(10, 100), (90, 100)], [10, 90]),
        ([(50, 100), (50, 100)], [50, 50]),
        ([(20, 100), (20, 100)], [50, 50]),  # unclaimed time is split by weight
        ([(20, 100), (40, 100)], [33.3, 66.7]),
        ([(30, 30), (30, 100)], [30, 70]),  # time above one limit goes to the other share
        ([(10, 10)], [10]),  # also when alone
        ([(0, 30)], [30]),
        ([(1, 100)], [100]),
        ([(10, 20), (10, 20), (10, 100)], [20, 20, 60]),
    ],
)
def test_busy_shares_get_their_part_within_half_a_point(
    given_percent: list[tuple[int, int]], expected: list[float]
) -> None:
    gpu = check([Worker(Entitlement(*pair)) for pair in given_percent])
    assert virtual_gpu.shares(gpu, 2 * SECOND, 12 * SECOND) == pytest.approx(expected, abs=0.5)


def test_an_idle_share_costs_the_others_nothing() -> None:
    gpu = check([Worker(Entitlement(20, 100)), Worker(Entitlement(80, 100), starts_ns=60 * SECOND)])
    assert virtual_gpu.shares(gpu, 0, 12 * SECOND)[0] == pytest.approx(100)
    assert gpu.handovers == 1  # alone it keeps its turn without a message
    assert gpu.turns.due_ns() is None  # and without a timer


def test_a_share_that_was_alone_has_neither_credit_nor_debt() -> None:
    gpu = VirtualGpu([Worker(Entitlement(50, 100)), Worker(Entitlement(50, 100), starts_ns=20 * SECOND)])
    gpu.run(20 * SECOND)
    assert gpu.turns.shares["0"].account.owed_ns == 0
    gpu.run(30 * SECOND)
    assert virtual_gpu.shares(gpu, 20 * SECOND, 30 * SECOND) == pytest.approx([50, 50], abs=1)


def test_a_debt_is_worked_off_equally_alone_and_next_to_others() -> None:
    books = Account(Entitlement(50, 100), 0)
    books.set(0, wanting=True, charge=PayingAccount.OWED)
    books.set(2 * SECOND, charge=PayingAccount.ALONE)
    assert books.owed_ns == -SECOND
    books.pass_time(3 * SECOND)
    assert books.owed_ns == -SECOND / 2
    books.pass_time(9 * SECOND)
    assert books.owed_ns == 0


def test_a_throttled_share_takes_its_turn_back_from_one_that_was_alone() -> None:
    gpu = check([Worker(Entitlement(30, 40)), Worker(Entitlement(20, 100))])
    assert virtual_gpu.shares(gpu, 2 * SECOND, 12 * SECOND) == pytest.approx([40, 60], abs=1.5)


def test_a_returning_share_is_served_at_once() -> None:
    gpu = VirtualGpu([Worker(Entitlement(50, 100), drain_ns=4 * MS), Worker(Entitlement(50, 100), starts_ns=SECOND)])
    gpu.run(2 * SECOND)
    assert gpu.charged["1"][0].begin_ns - SECOND < 10 * MS


def test_the_latency_class_interrupts_a_turn() -> None:
    def wait_ns(*, latency: bool) -> int:
        inference = Worker(Entitlement(20, 100, latency=latency), bursts=((2 * MS, 48 * MS),), drain_ns=0)
        gpu = check([inference, Worker(Entitlement(40, 100)), Worker(Entitlement(40, 100))])
        firsts = []
        for want in gpu.wanted["0"]:
            served = [span.begin_ns for span in gpu.charged["0"] if span.end_ns > want.begin_ns]
            firsts.append(max(0, min(served) - want.begin_ns) if served else 0)
        return sorted(firsts)[len(firsts) * 9 // 10]

    assert wait_ns(latency=True) < 5 * MS
    assert wait_ns(latency=False) > 5 * MS


def test_the_latency_class_cannot_starve_the_others() -> None:
    gpu = check([Worker(Entitlement(20, 100, latency=True)), Worker(Entitlement(80, 100))])
    assert virtual_gpu.shares(gpu, SECOND, 11 * SECOND) == pytest.approx([20, 80], abs=1)


def test_an_overrun_is_paid_back() -> None:
    gpu = VirtualGpu(
        [Worker(Entitlement(30, 100), drain_ns=60 * MS, closes=False), Worker(Entitlement(70, 100))]
    )  # kernels of 60 ms
    gpu.run(30 * SECOND)
    assert virtual_gpu.shares(gpu, 10 * SECOND, 30 * SECOND) == pytest.approx([30, 70], abs=1)


def test_a_debt_outlasts_the_window_and_ends() -> None:
    books = Account(Entitlement(50, 50), 0)
    books.set(0, wanting=True, charge=PayingAccount.OWED)
    books.set(8 * SECOND, charge=PayingAccount.NOTHING)  # a kernel of eight seconds
    assert not books.eligible()
    assert 7.9 * SECOND < books.eligible_in_ns() < 8.1 * SECOND
    books.pass_time(100 * SECOND)
    assert books.owed_ns == pytest.approx(5 * SECOND)  # capped at one window
    books.set(100 * SECOND, wanting=False)
    books.pass_time(200 * SECOND)
    assert books.owed_ns == account.CREDIT_NS
    assert books.room_ns == account.BURST_NS


def test_a_share_that_never_gives_back_delays_others_only_briefly() -> None:
    stopped = LeaseScheduler()
    stopped.join("stopped", Entitlement(50, 100), 0)
    stopped.join("other", Entitlement(50, 100), 0)
    assert stopped.want("stopped", 0) == [Open("stopped")]
    while (due := stopped.due_ns()) is not None and due < SECOND:
        assert stopped.tick(due) == []
    assert stopped.want("other", SECOND) == [Revoke("stopped")]
    due = stopped.due_ns()
    assert due == SECOND + Lengths().drain_timeout_ns
    assert stopped.tick(due) == [Open("other")]
    while due is not None and due < 60 * SECOND:
        stopped.tick(due)
        due = stopped.due_ns()
    assert stopped.holder == "other"
    assert stopped.released("stopped", 61 * SECOND) == []
    assert stopped.shares["stopped"].phase is None


def late(entitlement: Entitlement) -> LeaseScheduler:
    """Return a scheduler with a share whose lease was revoked at second 1 and not returned."""
    made = LeaseScheduler()
    made.join("a", entitlement, 0)
    made.join("other", Entitlement(50, 100), 0)
    made.want("a", 0)
    made.want("other", SECOND)
    made.tick(SECOND + Lengths().drain_timeout_ns)
    return made


def test_a_late_share_pays_while_the_driver_runs_its_work() -> None:
    gpu = late(Entitlement(50, 100))
    for second in range(2, 100, 2):
        gpu.observe("a", second * SECOND, works=second <= 60)
    # charged for the ten seconds in which it may still be running
    assert gpu.shares["a"].account.held_by_ns(99 * SECOND) == 70 * SECOND
    gpu.observe("a", 100 * SECOND, works=True)  # it was stopped, and continues
    assert gpu.shares["a"].account.held_by_ns(103 * SECOND) == 73 * SECOND
    gpu.released("a", 104 * SECOND)
    gpu.observe("a", 105 * SECOND, works=True)  # about a moment before
    assert gpu.shares["a"].account.held_by_ns(200 * SECOND) == 74 * SECOND


def test_a_share_pays_no_longer_than_its_kernel_ran_without_driver_reports() -> None:
    gpu = late(Entitlement(10, 10))
    gpu.released("a", 61 * SECOND)
    gpu.want("a", 61 * SECOND)
    assert gpu.shares["a"].account.held_by_ns(1000 * SECOND) == 61 * SECOND
    due = gpu.shares["a"].account.eligible_in_ns()
    assert 545 * SECOND < due < 551 * SECOND  # nine times the overrun


@settings(max_examples=25)
@given(st.sampled_from([1, 5, 10, 30, 50, 90]), st.integers(1, 300_000), st.booleans(), st.booleans())
def test_a_limit_holds_however_long_a_kernel_runs(limit: int, kernel_ms: int, beside: bool, closes: bool) -> None:
    """A kernel that runs when its turn ends finishes. The next one begins once the overrun is made up for."""
    worker = Worker(Entitlement(0, limit), drain_ns=kernel_ms * MS, closes=closes)
    gpu = VirtualGpu([worker, *([Worker(Entitlement(50, 100))] if beside else [])])
    until_ns = max(60 * SECOND, 2 * kernel_ms * MS * 100 // limit)
    gpu.run(until_ns)
    got = virtual_gpu.within(gpu.charged["0"], 0, until_ns)
    begun = limit / 100 * until_ns + 60 * MS
    assert got <= begun + worker.drain_ns
    if not beside:
        assert got >= min(begun * 0.9, worker.drain_ns)


def test_a_debt_to_others_is_capped_at_ten_seconds() -> None:
    books = Account(Entitlement(50, 100), 0)
    books.set(0, wanting=True, charge=PayingAccount.OWED)
    books.set(600 * SECOND, charge=PayingAccount.NOTHING)  # a kernel of ten minutes, without a limit
    assert books.eligible()
    books.pass_time(621 * SECOND)
    assert books.owed_ns > 0


def test_a_share_that_ends_in_any_phase_leaves_the_gpu_to_the_next() -> None:
    for steps in range(4):
        node = LeaseScheduler()
        node.join("a", Entitlement(50, 100), 0)
        node.join("b", Entitlement(50, 100), 0)
        node.want("a", 0)
        commands = node.want("b", 40 * MS if steps else MS)
        if steps >= 2:
            commands += node.closed("a", 41 * MS)
        if steps == 3:
            commands += node.tick(500 * MS)
        commands += node.remove("a", 600 * MS)
        assert commands[-1] == Open("b")
        assert node.holder == "b"
        assert node.shares["b"].account.charge is not PayingAccount.NOTHING


def test_two_shares_that_need_two_gpus_at_once_both_make_progress() -> None:
    """Each step is a kernel on both GPUs that ends only when both have begun, like the collectives of training."""
    for seed in range(4):
        assert min(collectives(random.Random(seed), seconds=5)) >= 2


def collectives(dice: random.Random, *, seconds: int) -> list[int]:
    """Return the number of steps of each of two shares."""
    gpus = [LeaseScheduler(), LeaseScheduler()]
    is_open = {(key, number): False for key in "ab" for number in (0, 1)}
    launched = dict.fromkeys(is_open, 0)
    steps = dict.fromkeys("ab", 0)
    now = 0
    events: list[tuple[int, Callable[[], list[object]]]] = []

    def obey(number: int, commands: list[Command]) -> None:
        for command in commands:
            is_open[command.key, number] = isinstance(command, Open)
            if isinstance(command, Revoke):
                gpus[number].want(command.key, now)  # its next launch waits already

    for number, gpu in enumerate(gpus):
        for key in "ab":
            obey(number, gpu.join(key, Entitlement(50, 100), 0))
        for key in dice.sample("ab", 2):
            obey(number, gpu.want(key, 0))
    del events
    while now < seconds * SECOND:
        now += MS
        for number, gpu in enumerate(gpus):
            obey(number, gpu.tick(now))
        for key in dice.sample("ab", 2):
            for number in dice.sample((0, 1), 2):
                if is_open[key, number] and launched[key, number] == steps[key]:
                    launched[key, number] += 1  # it spins from now on
            if launched[key, 0] == launched[key, 1] == steps[key] + 1:
                steps[key] += 1
            for number in (0, 1):
                # A share reports that it has drained only when none of its kernels spins.
                if not is_open[key, number] and launched[key, number] == steps[key]:
                    held = gpus[number].shares[key].phase is not None
                    obey(number, gpus[number].released(key, now) if held else [])
    return [steps[key] for key in "ab"]


MUTATIONS: dict[str, tuple[object, str, object]] = {
    "the longest waiting share is served": (account, "choose", lambda able: next(iter(able), None)),
    "the limit is ignored": (Account, "eligible", lambda _: True),
    "the limit does not end a turn": (Account, "lasts_ns", lambda _: None),
    "no share is owed time": (Account, "is_owed", lambda _: False),
    "a turn never ends": (lease_scheduler.LeaseScheduler, "_length_ns", lambda *_: 60 * SECOND),
    "idle shares save without end": (account, "CREDIT_NS", 60 * SECOND),
    "limits allow a second at once": (account, "BURST_NS", SECOND),
    "nothing is charged": (Account, "charge_of_turn", lambda _: PayingAccount.NOTHING),
    "all is surplus": (Account, "charge_of_turn", lambda _: PayingAccount.SURPLUS),
    "all weigh the same": (Account, "weight", 1.0),
    "the next one waits for a tick": (
        lease_scheduler.LeaseScheduler,
        "released",
        lambda self, key, now: self._end(key, now) or [],
    ),
    "the latency class is unbounded": (
        Account,
        "is_owed",
        lambda payer: payer.entitlement.latency or payer.owed_ns > 1,
    ),
    "late shares are waited for": (lease_scheduler.LeaseScheduler, "_expire", lambda *_: None),
}


def battery() -> None:
    """Run workloads that together exercise every law."""
    give = Entitlement
    check([Worker(give(30, 30))])
    check([Worker(give(30, 100)), Worker(give(70, 100))])
    check([Worker(give(30, 100), drain_ns=3 * MS, closes_ns=MS), Worker(give(70, 100), drain_ns=3 * MS, closes_ns=MS)])
    check([Worker(give(100, 100)), *(Worker(give(0, 100)) for _ in range(12))])
    if min(collectives(random.Random(3), seconds=2)) < 1:
        raise BrokenLawError("two shares with collectives stand still")
    surplus = check([Worker(give(20, 100)), Worker(give(40, 100))])
    if virtual_gpu.shares(surplus, 2 * SECOND, 12 * SECOND) != pytest.approx([33.3, 66.7], abs=1):
        raise BrokenLawError("idle time is not shared by weight")
    check([Worker(give(30, 40)), Worker(give(20, 20)), Worker(give(40, 100), bursts=((300 * MS, 200 * MS),))])
    check([Worker(give(90, 100)), Worker(give(10, 100), starts_ns=9 * SECOND)])
    check([Worker(give(60, 100), starts_ns=9 * SECOND), Worker(give(40, 100), starts_ns=SECOND)], seconds=22)
    check([Worker(give(40, 100, latency=True), bursts=((50 * MS, 20 * MS),)), Worker(give(60, 100))])


def test_the_battery_passes() -> None:
    battery()


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_breaking_the_code_breaks_a_law(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[mutation])
    with pytest.raises((BrokenLawError, ArithmeticError)):
        battery()
