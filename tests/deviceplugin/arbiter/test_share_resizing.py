"""Shares are resized while their processes run: real processes, and a GPUNode that changes."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin.arbiter import share_resizing
from deviceplugin.host import kernel_process
from gpushare.allocation import GivenShare, PodRef
from gpushare.gpunode import Resize
from tests.deviceplugin import waiting
from tests.deviceplugin.arbiter_node import GIB, GPUS, ArbiterNode, Share
from tests.deviceplugin.named import uid

TOLD = "of-trainer"


async def limits(share: Share) -> list[list[int]]:
    """Return memory, request and limit on each GPU, as a process sees them."""
    return [record[1:] for record in (await share("limits"))["records"]]


async def joined(node: ArbiterNode, count: int = 1, container: str = "main") -> list[Share]:
    shares = [await node.share(container=container) for _ in range(count)]
    for share in shares:
        await share("hello")
    return shares


async def test_an_increase_reaches_every_process_at_once(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB, gpus=2)
    shares = await joined(node, 2)
    node.change(memory_bytes=2 * GIB, request_percent=60, limit_percent=80)
    for share in shares:
        assert await limits(share) == [[2 * GIB, 60, 80]] * 2


async def test_a_resize_leaves_other_containers_alone(node: ArbiterNode) -> None:
    node.add_pod(
        "trainer", GivenShare(("main",), (GPUS[0],), 50, 100, GIB), GivenShare(("side",), (GPUS[1],), 20, 30, GIB)
    )
    (main,), (side,) = await joined(node), await joined(node, container="side")
    node.change(memory_bytes=2 * GIB)
    assert await limits(main) == [[2 * GIB, 50, 100]]
    assert await limits(side) == [[GIB, 20, 30]]


async def test_unused_memory_is_given_up_and_reported(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB, gpus=2)
    first, two = await joined(node, 2)
    await first("charge", 1, 100)
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, 120, 100),)
    assert [record[0] for record in await limits(two)] == [120, 120]
    assert not await two("take", 1, 21)
    node.change(memory_bytes=120, shrink_to_bytes=None)  # as the placer does now
    assert node.resizes == ()
    assert [record[0] for record in await limits(two)] == [120, 120]


async def test_memory_that_one_gpu_needs_is_given_up_on_none(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB, gpus=2)
    first, two = await joined(node, 2)
    await first("charge", 1, 100)
    await two("charge", 1, 30)
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, GIB, 130),)
    assert [record[0] for record in await limits(first)] == [GIB, GIB]


@pytest.mark.slow
async def test_memory_is_given_up_as_soon_as_it_is_unused(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    first, two = await joined(node, 2)
    await first("charge", 0, 100)
    await two("charge", 0, 30)
    node.change(shrink_to_bytes=120)
    await two.kill()
    await waiting.until(lambda: node.resizes == (Resize(TOLD, 0, 120, 100),))


async def test_measured_overhead_counts_as_used(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    await process("charge", 0, 100)
    (group,) = node.groups.all()
    group.limits.set_overhead(0, 30)
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, GIB, 130),)


@pytest.mark.slow
async def test_an_absurd_figure_of_a_program_is_capped_at_the_schemas_maximum(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    for process in await joined(node, 3):
        await process("charge", 0, (1 << 63) - 1)
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, GIB, (1 << 63) - 1),)


@pytest.mark.slow
async def test_no_memory_is_given_up_before_overhead_is_measured(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    await process("charge", 0, 100)
    node.measured = False  # as after a restart of the agent
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, GIB, 100),)
    assert await limits(process) == [[GIB, 50, 100]]
    node.measured = True
    await waiting.until(lambda: node.resizes == (Resize(TOLD, 0, 120, 100),))


async def test_without_a_process_memory_is_given_up_at_once_and_new_ones_get_less(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, 120, 0),)
    (process,) = await joined(node)
    assert await limits(process) == [[120, 50, 100]]


async def test_a_process_that_joins_later_gets_the_lower_limit(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    await joined(node)
    node.change(shrink_to_bytes=120)
    (two,) = await joined(node)
    assert await limits(two) == [[120, 50, 100]]


async def test_a_withdrawn_decrease_restores_the_limit_once_that_is_published(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    node.change(shrink_to_bytes=120)
    node.writes_status = False  # the API server does not answer
    node.change(shrink_to_bytes=None)
    assert await limits(process) == [[120, 50, 100]]  # the placer may just have read the published limit
    node.writes_status = True
    node.write_status()
    assert node.resizes == ()
    await waiting.until(lambda: node.groups.all()[0].tenant.memory_bytes == GIB)
    assert await limits(process) == [[GIB, 50, 100]]


async def test_new_processes_get_the_published_limit_until_it_is_withdrawn(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    node.change(shrink_to_bytes=120)
    node.writes_status = False
    node.change(shrink_to_bytes=None)
    (process,) = await joined(node)
    assert await limits(process) == [[120, 50, 100]]


async def test_a_smaller_decrease_and_then_a_larger_one(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    await process("charge", 0, 100)
    node.change(shrink_to_bytes=200)
    node.change(shrink_to_bytes=50)
    assert node.resizes == (Resize(TOLD, 0, 200, 100),)
    node.change(shrink_to_bytes=300)
    assert node.resizes == (Resize(TOLD, 0, 300, 100),)
    await waiting.until(lambda: node.groups.all()[0].tenant.memory_bytes == 300)


async def test_memory_that_the_ledger_has_given_away_is_taken_even_if_used(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    await process("charge", 0, 100)
    node.change(memory_bytes=50)
    assert await limits(process) == [[50, 50, 100]]


async def test_a_figure_that_keeps_changing_is_published_rarely(node: ArbiterNode) -> None:
    now = 0.0
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    node.clock = lambda: now
    await process("charge", 0, 200)
    node.change(shrink_to_bytes=100)
    resizes = node.resizes
    now = 5.0
    await process("charge", 0, 1)
    node.resizing.refresh()
    assert node.resizes == resizes
    now = 16.0
    node.resizing.refresh()
    assert node.resizes == (Resize(TOLD, 0, GIB, 201),)
    node.resizing.refresh()
    await process("charge", 0, 1)
    now = 35.0  # the second figure stays for twice as long
    node.resizing.refresh()
    assert node.resizes == (Resize(TOLD, 0, GIB, 201),)
    now = 36.0
    node.resizing.refresh()
    assert node.resizes == (Resize(TOLD, 0, GIB, 202),)


async def test_after_a_restart_the_published_limit_applies_to_all(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (first,) = await joined(node)
    await first("charge", 0, 100)
    node.change(shrink_to_bytes=120)
    await node.stop()
    await node.start()
    assert node.resizes == (Resize(TOLD, 0, 120, 100),)
    (two,) = await joined(node)
    assert await limits(two) == [[120, 50, 100]]
    assert await limits(first) == [[120, 50, 100]]


async def test_after_a_restart_nothing_is_promised_before_processes_reconnect(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    first, two = await joined(node, 2)
    await node.stop()
    await node.start()
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, GIB, 0),)
    await first("close")
    await first("hello")
    await first("reclaim")
    assert node.resizes == (Resize(TOLD, 0, GIB, 0),)
    await two("close")
    await two("hello")  # it has the new page, but has not yet proved that it uses it
    assert node.resizes == (Resize(TOLD, 0, GIB, 0),)
    await two("reclaim")
    assert node.resizes == (Resize(TOLD, 0, 120, 0),)
    assert await limits(first) == await limits(two) == [[120, 50, 100]]


async def test_after_a_restart_an_increase_reaches_processes_that_reconnect(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    await node.stop()
    await node.start()
    node.change(memory_bytes=2 * GIB)
    assert await limits(process) == [[GIB, 50, 100]]  # its old page cannot be written
    await process("close")
    await process("hello")
    assert await limits(process) == [[2 * GIB, 50, 100]]


async def test_nothing_is_promised_while_the_disk_cannot_be_written(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    with monkeypatch.context() as full:
        full.setattr(node.groups, "record", lambda *_: False)
        node.change(shrink_to_bytes=120)
        assert node.resizes == (Resize(TOLD, 0, GIB, 0),)
        node.change(shrink_to_bytes=None, memory_bytes=2 * GIB)
        assert await limits(process) == [[GIB, 50, 100]]
    monkeypatch.setattr(share_resizing, "RETRY_SECONDS", 0.01)
    node.resizing.refresh()
    assert await limits(process) == [[2 * GIB, 50, 100]]


async def test_processes_keep_their_limits_when_their_allocation_vanishes(
    node: ArbiterNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.add_pod("trainer", memory=GIB)
    (first,) = await joined(node)
    await first("charge", 0, 100)
    kept = list(node.allocations)
    node.allocations.clear()
    node.resizing.refresh()
    node.resizing.refresh()
    assert await limits(first) == [[GIB, 50, 100]]
    assert sum("is not in the ledger" in record.message for record in caplog.records) == 1
    two = await node.share()
    assert "is not in this node's GPUNode" in (await two("hello"))["refused"]
    node.allocations += kept
    node.change(memory_bytes=2 * GIB)
    assert await limits(first) == [[2 * GIB, 50, 100]]


async def test_a_share_on_other_gpus_is_not_the_running_one(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    node.change(gpu_uuids=(GPUS[1],), memory_bytes=2 * GIB)
    assert await limits(process) == [[GIB, 50, 100]]


async def test_nothing_is_promised_for_processes_that_cannot_be_inspected(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("trainer", memory=GIB)
    node.allocations[0] = dataclasses.replace(node.allocations[0], pod=PodRef("default", "trainer", uid("trainer")))
    (process,) = await joined(node)
    await node.stop()
    monkeypatch.setattr(kernel_process, "mapping", lambda *_, **__: kernel_process.Mapping(known=False, link=None))
    monkeypatch.setattr(share_resizing, "RETRY_SECONDS", 0.05)
    await node.start()
    node.change(shrink_to_bytes=120)
    assert node.resizes == (Resize(TOLD, 0, GIB, GIB),)
    await process.kill()
    await waiting.until(lambda: node.resizes == (Resize(TOLD, 0, 120, 0),))


async def test_deleting_the_gpunode_after_a_decrease_keeps_the_lower_limit(
    node: ArbiterNode,
) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    await process("charge", 0, 100)
    node.change(shrink_to_bytes=200)
    assert await limits(process) == [[200, 50, 100]]
    entries, node.allocations = node.allocations, []  # recreated, and not adopted yet
    node.resizes = ()
    node.resizing.refresh()
    assert await limits(process) == [[200, 50, 100]]
    node.allocations = entries
    node.change(shrink_to_bytes=None)  # adopted with the limit from before the decrease, which is then requested again
    assert await limits(process) == [[GIB, 50, 100]]
    assert node.resizes == ()
    node.change(shrink_to_bytes=200)
    assert await limits(process) == [[200, 50, 100]]
    assert node.resizes == (Resize(TOLD, 0, 200, 100),)


async def test_deleting_the_gpunode_before_a_decrease_keeps_what_is_used(node: ArbiterNode) -> None:
    node.add_pod("trainer", memory=GIB)
    (process,) = await joined(node)
    await process("charge", 0, 500)
    node.change(shrink_to_bytes=200)
    entries, node.allocations, node.resizes = node.allocations, [], ()
    node.resizing.refresh()
    assert await limits(process) == [[GIB, 50, 100]]
    node.allocations = entries
    node.change()
    assert node.resizes == (Resize(TOLD, 0, GIB, 500),)
    assert await limits(process) == [[GIB, 50, 100]]
