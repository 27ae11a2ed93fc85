"""A share gains nothing by lying about its leases, or by disconnecting and reconnecting."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from deviceplugin.arbiter.scheduling import leases
from deviceplugin.arbiter.scheduling.account import BURST_NS
from gpushare import contract
from tests.deviceplugin.arbiter.lease_clients import MS, Client, Node

WANT, CLOSED, RELEASED = contract.MESSAGE_WANT, contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED
OPEN, REVOKE, HELD = contract.MESSAGE_OPEN, contract.MESSAGE_REVOKE, contract.LEASE_HELD
LIMIT = 10
SECONDS = 20


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_a_late_claim_of_an_earlier_lease_must_return_it_first(node: Node) -> None:
    client = node.client("a")
    node.says(client, WANT, flags=HELD)
    assert [kind for kind, *_ in client.told] == [REVOKE, OPEN]
    assert client.told[0][3] == 0


async def test_a_claim_of_an_earlier_lease_is_believed_once() -> None:
    node = Node(settling_ns=leases.SETTLING_NS)
    client = node.client("a", request=0, limit=LIMIT)
    node.says(client, WANT, flags=HELD)
    assert client.may_launch
    node.later(60)
    node.says(client, RELEASED)
    for _ in range(20):
        node.says(client, WANT, flags=HELD)
        assert not client.may_launch
        node.later(1)


def says_it_holds(node: Node, client: Client) -> None:
    """Return a revoked lease, and claim at once to hold the GPU."""
    if client.told and client.last()[0] == REVOKE:
        node.says(client, RELEASED)
    if not client.may_launch:
        node.says(client, WANT, flags=HELD)


def gives_back_in_time(node: Node, client: Client) -> None:
    """Return the lease before the limit ends the turn, so that no debt arises."""
    node.says(client, RELEASED)
    node.says(client, WANT)


def mixes(node: Node, client: Client) -> None:
    """Send random messages."""
    dice = random.Random(node.now_ns)
    kind = dice.choice([WANT, CLOSED, RELEASED])
    node.says(client, kind, flags=dice.choice([0, HELD]), number=dice.choice([0, client.number if client.told else 7]))


@pytest.mark.slow
@pytest.mark.parametrize("settling_ns", [0, leases.SETTLING_NS], ids=["later", "after a start"])
@pytest.mark.parametrize("way", [says_it_holds, gives_back_in_time, mixes], ids=lambda way: way.__name__)
async def test_no_message_gives_a_share_more_than_its_limit(
    way: Callable[[Node, Client], None], settling_ns: int
) -> None:
    node = Node(settling_ns=settling_ns)
    client = node.client("a", request=0, limit=LIMIT)
    open_ms = 0
    for _ in range(SECONDS * 200):
        way(node, client)
        open_ms += 5 if client.may_launch else 0
        node.later(5)
    # A client that returns only on revoke overruns each turn by up to one step of this loop.
    assert open_ms <= SECONDS * 1000 * LIMIT / 100 * 1.25 + BURST_NS / MS + 10


async def test_a_share_that_never_gives_back_waits_for_it_afterwards(node: Node) -> None:
    client = node.client("a", request=0, limit=LIMIT)
    node.says(client, WANT)
    for _ in range(200):
        node.later(5)
    node.says(client, RELEASED)  # it has run for a second
    node.says(client, WANT)
    waited_ms = 0
    while not client.may_launch:
        node.later(10)
        waited_ms += 10
    assert waited_ms > 8000


@pytest.mark.parametrize("runs_ms", [20, 50, 400])
async def test_short_processes_in_sequence_stay_within_their_shares_limit(node: Node, runs_ms: int) -> None:
    had_ms = 0
    until_ns = node.now_ns + SECONDS * 1000 * MS
    while node.now_ns < until_ns:
        client = node.client("a", request=0, limit=LIMIT)
        node.says(client, WANT)
        has_begun = False
        for _ in range(runs_ms // 5):  # a kernel that has begun cannot be interrupted
            has_begun |= client.may_launch
            had_ms += 5 if has_begun else 0
            node.later(5)
        node.leases.remove(client)
    assert had_ms <= SECONDS * 1000 * LIMIT / 100 * 1.25 + runs_ms + BURST_NS / MS


async def test_a_stopped_holder_pays_for_seconds_and_a_running_kernel_for_all(
    node: Node,
) -> None:
    stopped, other = node.client("a"), node.client("b")
    running = node.client("c", gpus=("GPU-1",), limit=10)
    for client in (stopped, other, running):
        node.says(client, WANT)
    for _ in range(30):
        node.later(2000)
        node.leases.observe(
            {("GPU-0", "a-0"): False, ("GPU-1", "c-0"): True, ("GPU-0", "gone"): True, ("gone", "a-0"): True}
        )
    held = {usage.tenant.pod: usage.seconds for usage in node.leases.usage()}
    assert 10 < held["a"] < 15
    assert held["c"] == pytest.approx(60, abs=1)


async def test_a_lease_counts_until_it_is_returned_and_late_ones_for_ten_seconds(node: Node) -> None:
    late, other = node.client("a"), node.client("b")

    def had() -> dict[str, float]:
        return {usage.tenant.pod: round(usage.had_seconds, 3) for usage in node.leases.usage()}

    node.later(1000)
    assert had() == {"a": 0, "b": 0}
    node.says(late, WANT)
    node.later(20)
    node.says(other, WANT)
    node.later(20)  # its turn is over
    node.says(late, CLOSED)
    node.later(2)
    node.says(late, RELEASED)
    assert had() == {"a": 0.042, "b": 0.002}  # both had it while the last work ran out
    node.says(other, RELEASED)
    node.says(late, WANT)
    node.says(other, WANT)
    node.later(40)
    node.later(100)  # it has not returned it
    before = had()
    for _ in range(30):
        node.later(1000)
        node.leases.observe({("GPU-0", "a-0"): True})
    after = had()
    assert after["a"] - before["a"] == pytest.approx(10)
    assert after["b"] - before["b"] == pytest.approx(30)


async def test_the_next_process_pays_a_shares_debt_which_is_forgotten_once_paid(node: Node) -> None:
    other, client = node.client("b"), node.client("a")
    node.says(client, WANT)
    node.says(other, WANT)
    node.later(40)
    assert client.last()[0] == REVOKE
    node.later(3000)  # a long kernel
    node.leases.remove(client)
    again = node.client("a")
    held = {usage.tenant.pod: usage.seconds for usage in node.leases.usage()}
    assert held["a"] > 3
    node.leases.remove(again)
    node.later(60_000)
    node.leases.remove(node.client("c"))
    node.client("a")
    held = {usage.tenant.pod: usage.seconds for usage in node.leases.usage()}
    assert held["a"] == 0


async def test_waiting_and_throttled_time_are_separate_and_evictions_are_counted(node: Node) -> None:
    limited, other = node.client("a", request=10, limit=LIMIT), node.client("b")
    node.says(limited, WANT)
    while limited.may_launch:
        node.later(5)
    node.says(limited, RELEASED)
    node.says(limited, WANT)
    node.later(100)
    first = {usage.tenant.pod: usage for usage in node.leases.usage()}
    assert first["a"].waited_seconds == first["a"].throttled_seconds == pytest.approx(0.1)
    node.says(other, WANT)
    node.later(1000)  # the ended turn is not reported
    node.later(1000)
    usages = {usage.tenant.pod: usage for usage in node.leases.usage()}
    assert (usages["a"].evictions, usages["b"].evictions) == (0, 1)
    assert 0.1 < usages["a"].throttled_seconds < usages["a"].waited_seconds <= 2.1
    assert usages["b"].throttled_seconds == 0
