"""The memory ledger, with real processes over the real socket: exact, and no byte is given twice."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import waiting
from tests.deviceplugin.arbiter_node import GIB, GPUS, ArbiterNode


async def test_a_process_gets_its_limits_and_its_slot(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=3 * GIB, gpus=2)
    process = await node.share()
    assert await process("hello") == {"gpus": 2, "slot": 0}
    limits = await process("limits")
    assert limits["records"] == [
        ["00000000000000000000000000000000", 3 * GIB, 50, 100],
        ["00000000000000000000000000000001", 3 * GIB, 50, 100],
    ]
    assert limits["slots"] >= 1


async def test_processes_of_a_container_see_one_sum(node: ArbiterNode) -> None:
    node.add_pod("trainer", gpus=2)
    first, two = await node.share(), await node.share()
    assert (await first("hello"))["slot"] == 0
    assert (await two("hello"))["slot"] == 1
    await first("charge", 0, 100)
    await two("charge", 0, 20)
    await two("charge", 1, 3)
    assert await first("sum", 0) == await two("sum", 0) == 120
    assert await first("sum", 1) == 3
    assert node.used() == (120, 3)


@pytest.mark.slow
async def test_a_container_sees_nothing_of_another_pods(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    node.add_pod("server", memory=2 * GIB)
    first, two = await node.share("trainer"), await node.share("server")
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    assert await two("sum", 0) == 0
    assert (await two("limits"))["records"][0][1] == 2 * GIB


@pytest.mark.slow
async def test_containers_that_share_a_demand_share_a_ledger(node: ArbiterNode) -> None:
    node.add_pod("trainer", GivenShare(("main", "side"), (GPUS[0],), 50, 100, GIB))
    first, two = await node.share(container="main"), await node.share(container="side")
    await first("hello")
    assert (await two("hello"))["slot"] == 1
    await first("charge", 0, 7)
    assert await two("sum", 0) == 7


async def test_containers_with_demands_of_their_own_have_separate_ledgers(node: ArbiterNode) -> None:
    node.add_pod(
        "trainer", GivenShare(("main",), (GPUS[0],), 50, 100, GIB), GivenShare(("side",), (GPUS[1],), 20, 30, 2 * GIB)
    )
    first, two = await node.share(container="main"), await node.share(container="side")
    await first("hello")
    assert (await two("hello"))["slot"] == 0
    assert (await two("limits"))["records"] == [["00000000000000000000000000000001", 2 * GIB, 20, 30]]


async def test_a_killed_process_leaves_no_charge_and_others_keep_theirs(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    await two("charge", 0, 20)
    await first.kill()
    await waiting.until(lambda: node.used() == (20,))
    assert await two("sum", 0) == 20


async def test_reclaim_returns_the_bytes_of_a_killed_process(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    await first.kill()
    # The answer is the same whether the arbiter had noticed the death before or not.
    assert await two("reclaim") == 100
    assert await two("sum", 0) == 0
    assert await two("reclaim") == 0


@pytest.mark.slow
async def test_a_slot_is_reused_only_once_it_is_clear(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    keeper, process = await node.share(), await node.share()
    await keeper("hello")
    await process("hello")
    await process("charge", 0, 100)
    await process.kill()
    await waiting.until(lambda: node.used() == (0,))
    two = await node.share()
    assert (await two("hello"))["slot"] == 1
    await two("charge", 0, 5)
    await keeper("reclaim")
    assert node.used() == (5,)  # the slot was cleared once, not again for the dead process


async def test_a_process_that_closes_its_socket_stays_charged_while_it_lives(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    await first("close")
    await waiting.until(lambda: node.server.connections == 1)
    assert await two("reclaim") == 0
    assert await two("sum", 0) == 100
    await first.kill()
    await waiting.until(lambda: node.used() == (0,))


async def test_a_process_that_reconnects_has_its_slot_and_its_charge(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    await process("charge", 0, 100)
    await process("close")
    assert (await process("hello"))["slot"] == 0
    assert await process("sum", 0) == 100


@pytest.mark.slow
async def test_a_process_that_became_another_program_is_not_charged(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first, two = await node.share(), await node.share()
    await first("hello")
    await two("hello")
    await first("charge", 0, 100)
    await first("become")
    await waiting.until(lambda: node.used() == (0,))
    assert (await first("hello"))["slot"] == 0
    await first("charge", 0, 1)
    assert await two("sum", 0) == 1


async def test_a_dead_parent_is_cleared_although_its_child_keeps_the_socket_open(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    parent, two = await node.share(), await node.share()
    await parent("hello")
    await two("hello")
    await parent("charge", 0, 100)
    child = await parent("fork")
    try:
        await parent.kill()
        await waiting.until(lambda: node.used() == (0,))
        assert await two("sum", 0) == 0
    finally:
        os.kill(child, signal.SIGKILL)


async def test_the_last_process_takes_the_ledger_with_it(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first = await node.share()
    await first("hello")
    assert len(list((node.directory / "state").iterdir())) == 1
    await first.kill()
    await waiting.until(lambda: node.used() is None)
    assert list((node.directory / "state").iterdir()) == []
    two = await node.share()
    assert (await two("hello"))["slot"] == 0
    assert await two("sum", 0) == 0


async def test_no_container_can_change_its_limits_or_the_size_of_its_ledger(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    before = await process("limits")
    assert await process("tamper") == []
    assert await process("limits") == before


@pytest.mark.slow
async def test_a_hostile_slot_harms_only_its_own_container(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    node.add_pod("server")
    first, two = await node.share("trainer"), await node.share("server")
    await first("hello")
    await two("hello")
    await two("charge", 0, 5)
    for slot in range(512):
        await first("write", 0, slot, 2**64 - 1)
    assert await first("reclaim") == 0
    assert await two("sum", 0) == 5
    assert node.used("server") == (5,)
    assert node.used("trainer") == (64 * (2**64 - 1),)  # in the slots that are added up
    await first.kill()
    await waiting.until(lambda: node.used("trainer") is None)
    assert await two("reclaim") == 0


@pytest.mark.slow
async def test_the_maximum_number_of_processes_get_distinct_slots(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    shares = await asyncio.gather(*(node.share() for _ in range(12)))
    answers = await asyncio.gather(*(share("hello") for share in shares))
    assert sorted(answer["slot"] for answer in answers) == list(range(12))
    await asyncio.gather(*(share("charge", 0, 1) for share in shares))
    assert node.used() == (12,)
    for share in shares[:11]:
        share.process.send_signal(signal.SIGKILL)
    await waiting.until(lambda: node.used() == (1,))
