"""The queues have the same head as a scan of all waiting shares would find, and cost less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter.scheduling.account import Account, Entitlement, PayingAccount, WaitQueue, choose
from deviceplugin.arbiter.scheduling.gpu_share import Revoke
from deviceplugin.arbiter.scheduling.lease_scheduler import LeaseScheduler
from tests.deviceplugin.arbiter.virtual_gpu import MS

KEYS = st.integers(0, 7).map(str)
GIVEN = st.builds(Entitlement, st.sampled_from([0, 5, 10, 30]), st.sampled_from([30, 50, 100]), st.booleans())
STEPS = st.one_of(
    st.tuples(st.just("passes"), st.integers(1, 300)),
    st.tuples(st.just("waits"), KEYS),
    st.tuples(
        st.just("served"), KEYS, st.integers(1, 80), st.sampled_from([PayingAccount.OWED, PayingAccount.SURPLUS])
    ),
    st.tuples(st.just("late"), KEYS),
    st.tuples(st.just("given"), KEYS, GIVEN),
)


@pytest.mark.slow
@given(st.lists(GIVEN, min_size=8, max_size=8), st.lists(STEPS, max_size=40))
def test_the_head_is_the_choice_among_all(gives: list[Entitlement], steps: list[tuple]) -> None:  # type: ignore[type-arg]
    accounts = {str(number): Account(entitlement, 0) for number, entitlement in enumerate(gives)}
    waiting, now = WaitQueue(), 0
    for what, *rest in steps:
        if what == "passes":
            now += rest[0] * MS
        else:
            account = accounts[rest[0]]
            if what == "served":
                waiting.discard(rest[0])
                account.set(now, wanting=True, charge=rest[2])
                now += rest[1] * MS
                account.set(now, charge=PayingAccount.NOTHING)
            elif what == "given":
                account.change(rest[1], now)
            else:
                account.set(now, wanting=True, charge=PayingAccount.OWED if what == "late" else PayingAccount.NOTHING)
            if what != "given" or rest[0] in waiting:
                waiting.add(rest[0], account, now)
        for account in accounts.values():
            account.pass_time(now)
        expected = choose({key: accounts[key] for key in waiting})
        first = waiting.first(now)
        assert (first is None) == (expected is None)
        if first is not None and expected is not None:
            assert standing(accounts[first]) == pytest.approx(standing(accounts[expected]), abs=2)


def standing(account: Account) -> tuple[float, ...]:
    """Return the sort key. Two shares below or above a window's worth are equal."""
    owed = account.owed_ns if account.is_owed() else 0
    most = account.entitlement.request_percent / 100 * 10_000 * MS
    return (account.entitlement.latency and owed > 0, min(owed, max(most, 50 * MS)), 0 if owed else account.surplus_ns)


def test_a_removed_share_is_not_served() -> None:
    waiting = WaitQueue()
    account = Account(Entitlement(50, 100), 0)
    waiting.add("one", account, 0)
    waiting.discard("one")
    waiting.discard("one")
    assert (waiting.first(MS), len(waiting), waiting.next_ns(MS)) == (None, 0, None)


def test_a_throttled_share_begins_when_its_limit_allows() -> None:
    waiting = WaitQueue()
    account = Account(Entitlement(10, 10), 0)
    account.set(0, wanting=True, charge=PayingAccount.OWED)
    account.set(100 * MS, charge=PayingAccount.NOTHING)
    waiting.add("one", account, 100 * MS)
    at = waiting.next_ns(100 * MS)
    assert at is not None
    assert waiting.first(at - MS) is None
    assert waiting.first(at) == "one"


def looks(shares: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Count the accounts that a turn inspects with this many waiting shares."""
    turns, now, count = LeaseScheduler(), 0, 0
    for number in range(shares):
        turns.join(str(number), Entitlement(100 // shares, 100), now)
        turns.want(str(number), now)

    def pass_time(self: Account, now_ns: int, original=Account.pass_time) -> None:  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        original(self, now_ns)

    with monkeypatch.context() as patched:
        patched.setattr(Account, "pass_time", pass_time)
        for _ in range(20):
            revoked: list[str] = []
            while not revoked:
                now = max(now + 1, turns.due_ns() or 0)
                revoked = [command.key for command in turns.tick(now) if isinstance(command, Revoke)]
            turns.want(revoked[0], now)
            turns.closed(revoked[0], now)
            turns.released(revoked[0], now)
    return count / 20


def test_a_turn_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(100, monkeypatch) <= 1.5 * looks(4, monkeypatch)
