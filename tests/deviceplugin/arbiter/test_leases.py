"""Messages from and to clients: leases of shares with one and with several processes, and hostile messages."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest

from deviceplugin.arbiter.scheduling import leases
from deviceplugin.arbiter.tenant import Grant, Tenant
from gpushare import contract
from tests.deviceplugin.arbiter.lease_clients import MS, Client, Node

WANT, CLOSED, RELEASED = contract.MESSAGE_WANT, contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED
OPEN, REVOKE = contract.MESSAGE_OPEN, contract.MESSAGE_REVOKE
COUNTED, CONTENDED, HELD = contract.LEASE_COUNTED, contract.LEASE_CONTENDED, contract.LEASE_HELD


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_a_share_alone_on_its_gpu_is_open_at_once_and_does_not_count(node: Node) -> None:
    client = node.client("a")
    node.says(client, WANT)
    assert client.last() == (OPEN, 0)
    node.later(60_000)
    assert len(client.told) == 1


async def test_a_second_share_makes_the_first_one_count_and_then_takes_its_turn(node: Node) -> None:
    first = node.client("a")
    node.says(first, WANT)
    two = node.client("b")
    assert first.last() == (OPEN, COUNTED)  # it has only joined, and wants nothing yet
    node.later(200)
    node.says(two, WANT)
    assert first.last()[0] == REVOKE
    assert two.told == []
    node.says(first, CLOSED)
    assert two.last() == (OPEN, COUNTED)
    node.says(first, RELEASED)
    node.says(first, WANT)
    assert two.last() == (OPEN, COUNTED | CONTENDED)
    node.later(30)  # it was idle for a while, so it is owed a second turn
    node.later(30)
    assert two.last()[0] == REVOKE
    node.says(two, RELEASED)
    assert first.last()[0] == OPEN


async def test_next_to_the_latency_class_a_share_gets_the_brief_flag(node: Node) -> None:
    client = node.client("a")
    node.says(client, WANT)
    grants = (Grant("GPU-0", 1 << 30, 20, 100),)
    urgent = Client(Tenant("b", "default", "b", ("main",), 0, grants, latency=True))
    node.leases.join(urgent)
    assert client.last() == (OPEN, COUNTED | contract.LEASE_BRIEF)
    node.says(urgent, WANT)
    node.says(client, RELEASED)
    assert urgent.last() == (OPEN, COUNTED)  # the other one can wait
    node.leases.remove(urgent)
    node.says(client, WANT)
    assert client.last() == (OPEN, 0)


async def test_a_resumed_process_does_not_end_the_drain_of_another_one(node: Node) -> None:
    gpus = ("GPU-0", "GPU-1")
    first, two, other = node.client("a", gpus=gpus), node.client("a", gpus=gpus), node.client("b")
    node.says(first, WANT)
    node.says(other, WANT)
    node.later(200)
    assert first.last()[0] == REVOKE
    node.says(first, CLOSED)
    node.says(two, WANT)
    node.later(2)
    assert two.told == other.told == []
    node.later(1)
    assert two.last()[0] == OPEN
    node.later(1)
    assert (first.last()[0], two.last()[0]) == (REVOKE, REVOKE)
    node.says(two, RELEASED)
    assert other.told == []
    node.says(first, RELEASED)
    assert other.last()[0] == OPEN


async def test_a_share_does_not_use_a_gpu_that_is_only_reserved_for_it(node: Node) -> None:
    gang = node.client("a", request=90, gpus=("GPU-0", "GPU-1"))
    other = node.client("b", request=10, gpus=("GPU-1",))
    for gpu in (0, 1):
        node.says(gang, WANT, gpu=gpu)
    node.says(other, WANT)
    for _ in range(400):
        numbers = {gpu: number for kind, gpu, _, number in gang.told if kind == OPEN}
        node.later(1)
        node.says(gang, RELEASED, gpu=1, number=numbers[1])
        node.later(4)
        for client, gpu, number in ((other, 0, other.number if other.told else 0), (gang, 0, numbers[0])):
            if client.told and client.told[-1][:2] == (REVOKE, gpu):
                node.says(client, RELEASED, gpu=gpu, number=number)
                node.says(client, WANT, gpu=gpu)
        node.says(gang, WANT, gpu=1)
    usage = {usage.gpu_uuid: usage for usage in node.leases.usage() if usage.tenant is gang.tenant}
    assert usage["GPU-1"].recent == pytest.approx(0.2, abs=0.06)
    assert usage["GPU-1"].seconds > 0.6 * 2


async def test_the_processes_of_a_share_use_its_lease_together(node: Node) -> None:
    first, two, other = node.client("a"), node.client("a"), node.client("b")
    node.says(first, WANT)
    node.says(two, WANT)
    assert first.last()[0] == two.last()[0] == OPEN
    assert two.number != first.number  # a message about one lease does not concern the other
    node.later(200)
    node.says(other, WANT)
    assert first.last()[0] == two.last()[0] == REVOKE
    node.says(first, RELEASED)
    assert other.told == []  # the other process still runs
    node.says(two, CLOSED)
    assert other.last()[0] == OPEN


async def test_messages_about_an_earlier_lease_do_not_affect_the_next_one(node: Node) -> None:
    first, two, other = node.client("a"), node.client("a"), node.client("b")
    node.says(first, WANT)
    node.says(two, WANT)
    before = first.number
    node.says(first, RELEASED)
    node.says(first, WANT)  # the other process of its share still has the GPU
    assert first.last()[0] == OPEN
    assert first.number != before
    node.later(200)
    node.says(other, WANT)
    for late in (before, 0):
        node.says(first, CLOSED, number=late)
        node.says(first, RELEASED, number=late)
    node.says(two, RELEASED)
    assert other.told == []
    node.says(first, RELEASED)
    assert other.last()[0] == OPEN


async def test_a_lease_returned_while_it_is_confirmed_after_a_restart_is_kept() -> None:
    node = Node(settling_ns=leases.SETTLING_NS)
    client, other = node.client("a"), node.client("b")
    node.says(client, WANT, flags=HELD)
    node.says(client, RELEASED, number=0)  # sent before it knew the number; then it opens its gate again
    node.says(other, WANT)
    node.later(1)
    assert other.told == []
    node.says(client, RELEASED)
    assert other.last()[0] == OPEN


async def test_a_share_whose_waiting_process_has_died_gets_no_turn(node: Node) -> None:
    client, other = node.client("a"), node.client("b")
    idle, waiting = node.client("c"), node.client("c")
    node.says(client, WANT)
    node.later(200)
    node.says(waiting, WANT)
    node.leases.remove(waiting)
    node.says(client, RELEASED)
    assert idle.told == []
    node.says(other, WANT)
    assert other.last()[0] == OPEN


async def test_a_limited_share_is_stopped_even_when_alone(node: Node) -> None:
    client = node.client("a", request=30, limit=30)
    node.says(client, WANT)
    assert client.last() == (OPEN, COUNTED | CONTENDED)
    node.later(80)
    assert client.last()[0] == REVOKE
    node.says(client, RELEASED)
    node.says(client, WANT)
    assert client.last()[0] == REVOKE
    node.later(100)
    assert client.last()[0] == REVOKE  # its limit's part of a period of 150 ms
    node.later(70)
    assert client.last()[0] == OPEN


@pytest.mark.parametrize("when", ["wants", "holds", "revoked", "closed", "late"])
async def test_a_share_whose_process_ends_leaves_the_gpu_to_the_next(node: Node, when: str) -> None:
    first, two = node.client("a"), node.client("b")
    if when == "wants":
        node.says(two, WANT)
        node.says(first, WANT)
        node.leases.remove(first)
        assert two.last() == (OPEN, 0)  # alone again
        return
    node.says(first, WANT)
    node.later(200 if when != "holds" else 1)
    node.says(two, WANT)
    if when == "closed":
        node.says(first, CLOSED)
    if when == "late":
        node.later(200)
    node.leases.remove(first)
    assert two.last() == (OPEN, 0)
    node.leases.remove(two)
    assert not list(node.leases.usage())


async def test_after_a_restart_the_first_holder_keeps_the_gpu_and_others_return_it() -> None:
    node = Node(settling_ns=leases.SETTLING_NS)
    first, two = node.client("a"), node.client("b")
    node.says(first, WANT, flags=HELD)
    node.says(two, WANT, flags=HELD)
    assert first.last()[0] == OPEN
    assert two.told[-1] == (REVOKE, 0, 0, 0)
    node.says(two, RELEASED, number=0)
    node.later(40)
    assert first.last()[0] == REVOKE
    node.says(first, RELEASED)
    assert two.last()[0] == OPEN


async def test_after_a_restart_no_share_counts_as_alone() -> None:
    node = Node(settling_ns=leases.SETTLING_NS)
    client = node.client("a")
    node.says(client, WANT, flags=HELD)
    assert client.last() == (OPEN, COUNTED)
    node.later(11_000)
    assert client.last() == (OPEN, 0)


async def test_no_turn_is_granted_while_the_agent_ends(node: Node) -> None:
    first, two = node.client("a"), node.client("b")
    node.says(first, WANT)
    node.says(two, WANT)
    count = len(first.told)
    node.leases.close()
    node.leases.remove(first)
    node.leases.remove(two)
    assert (len(first.told), two.told) == (count, [])


async def test_a_share_of_two_gpus_begins_when_it_may_have_both(node: Node) -> None:
    both = node.client("a", gpus=("GPU-0", "GPU-1"))
    other = node.client("b", gpus=("GPU-1",))
    node.says(other, WANT)
    node.says(both, WANT, gpu=0)
    assert both.told == []
    node.later(30)
    assert other.last()[0] == REVOKE
    node.says(other, RELEASED)
    assert [(kind, gpu) for kind, gpu, *_ in both.told] == [(OPEN, 0)]
    node.says(both, WANT, gpu=1)  # reserved for it
    assert [(kind, gpu) for kind, gpu, *_ in both.told] == [(OPEN, 0), (OPEN, 1)]
    node.says(other, WANT)
    node.later(100)
    assert [(kind, gpu) for kind, gpu, *_ in both.told[-2:]] == [(REVOKE, 0), (REVOKE, 1)]
    numbers = {gpu: number for _, gpu, _, number in both.told}
    node.says(both, RELEASED, gpu=1, number=numbers[1])
    assert other.last()[0] == REVOKE  # work on the other GPU may wait for this one
    node.says(both, RELEASED, gpu=0, number=numbers[0])
    assert other.last()[0] == OPEN


async def test_a_gpu_unused_by_a_share_of_two_serves_others_meanwhile(node: Node) -> None:
    both = node.client("a", gpus=("GPU-0", "GPU-1"))
    other = node.client("b", gpus=("GPU-1",))
    node.says(both, WANT, gpu=0)
    node.says(other, WANT)
    assert other.told == []
    node.later(3)
    assert other.last()[0] == OPEN
    node.says(both, WANT, gpu=1)
    assert other.last()[0] == REVOKE  # it has its turn
    node.says(other, RELEASED)
    assert both.told[-1][:2] == (OPEN, 1)


async def test_nonsense_messages_change_nothing_for_others(node: Node) -> None:
    dice = random.Random(5)
    honest, hostile = node.client("a"), node.client("b")
    for _ in range(400):
        for _ in range(5):
            kind = dice.choice([WANT, CLOSED, RELEASED])
            number = dice.choice([0, 1, 2**64 - 1, hostile.number if hostile.told else 7])
            node.says(hostile, kind, flags=dice.randrange(8), number=number)
        if not honest.told or honest.last()[0] == REVOKE:
            if honest.told:
                node.says(honest, RELEASED)
            node.says(honest, WANT)
        node.later(dice.randrange(1, 30))
    seconds = {held.tenant.pod: held.seconds for held in node.leases.usage()}
    assert seconds["a"] > 0.45 * (node.now_ns / 1e9 - 1)


async def test_two_hundred_idle_containers_cost_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def noted(*asked: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*asked))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", noted)
    clients = [node.client(f"pod-{number}", request=0, gpus=(f"GPU-{number % 8}",)) for number in range(200)]
    for client in clients:
        node.says(client, WANT)
    for _ in range(3):
        for client in clients:
            if client.told and client.last()[0] == OPEN:
                node.says(client, RELEASED)
    assert len(node.leases.gpus) == 8
    assert timers
    assert all(timer.cancelled() for timer in timers)
    for client in clients:
        node.leases.remove(client)
    assert not node.leases.gpus


async def test_held_time_is_reported_up_to_now_and_recent_use_only_if_known(node: Node) -> None:
    holder = node.client("a")
    node.says(holder, WANT)
    node.now_ns += 5000 * MS
    (held,) = node.leases.usage()
    assert (held.seconds, held.leases, held.recent) == (5, 1, None)
    other = node.client("b")
    node.says(other, WANT)
    for _ in range(400):
        for client in (holder, other):
            if client.told and client.last()[0] == REVOKE:
                node.says(client, RELEASED)
                node.says(client, WANT)
        node.later(5)
    parts = {usage.tenant.pod: usage for usage in node.leases.usage()}
    assert parts["a"].recent == pytest.approx(0.5, abs=0.1)
    assert parts["b"].recent == pytest.approx(0.5, abs=0.1)
    assert sum(part.seconds for part in parts.values()) == pytest.approx(7, abs=0.2)


def resized(client: Client, request: int, limit: int) -> Tenant:
    """Return the client's share with other limits, for all its processes."""
    grants = tuple(Grant(grant.uuid, grant.memory_bytes, request, limit) for grant in client.tenant.grants)
    client.tenant = dataclasses.replace(client.tenant, grants=grants)
    return client.tenant


async def test_a_free_holder_is_told_to_count_when_it_gets_a_limit_and_is_stopped_by_it(node: Node) -> None:
    client = node.client("a", gpus=("GPU-0", "GPU-1"))
    node.says(client, WANT)
    assert client.last() == (OPEN, 0)
    node.later(1)
    node.leases.update(resized(client, 10, 20))
    assert client.last() == (OPEN, COUNTED | CONTENDED)
    node.later(70)
    assert client.last()[0] == REVOKE
    node.says(client, RELEASED)
    node.says(client, WANT)
    assert client.last()[0] == REVOKE
    node.leases.update(resized(client, 10, 100))  # and may launch again at once when the limit is gone
    assert client.last() == (OPEN, 0)


async def test_changes_of_a_share_without_leases_are_ignored(node: Node) -> None:
    client = node.client("a")
    node.leases.remove(client)
    node.leases.update(resized(client, 10, 20))
    assert not node.leases.gpus
