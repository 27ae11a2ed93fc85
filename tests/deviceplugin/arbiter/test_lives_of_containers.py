"""Containers that are restarted, stopped, or outlive their pod keep their own memory and limits, and no others."""

from __future__ import annotations

import os
import signal

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import named, waiting
from tests.deviceplugin.arbiter_node import GIB, GPUS, ArbiterNode


def restarted(node: ArbiterNode, container: str = "main") -> str:
    """Give the container a new id, as the runtime does. Return a name for it in a test."""
    again = f"{container}-again"
    for status in node.pods[0]["status"]["containerStatuses"]:
        if status["name"] == container:
            status["containerID"] = f"containerd://{named.container_id('trainer', again)}"
    return again


async def test_a_restarted_container_has_the_same_share_and_the_memory_still_held(
    node: ArbiterNode,
) -> None:
    node.add_pod(
        "trainer", GivenShare(("main",), (GPUS[0],), 50, 100, GIB), GivenShare(("side",), (GPUS[0],), 20, 100, GIB)
    )
    old = await node.share(container="main")
    await old("hello")
    await old("charge", 0, 100)
    new = await node.share(container=restarted(node))
    assert (await new("hello"))["slot"] == 1
    assert await new("sum", 0) == 100
    await old.kill()
    await waiting.until(lambda: node.used() == (0,))
    assert await new("sum", 0) == 0


async def test_a_stopped_containers_id_gets_no_share_unless_the_pod_has_only_one(
    node: ArbiterNode,
) -> None:
    node.add_pod("trainer", GivenShare(("main",), (GPUS[0],), 50, 100, GIB))
    restarted(node)
    late = await node.share(container="main")
    assert (await late("hello"))["slot"] == 0  # every container of the pod with the socket belongs to its one share


@pytest.mark.slow
async def test_a_deleted_pods_processes_keep_their_limits_and_new_ones_are_refused(
    node: ArbiterNode,
) -> None:
    node.add_pod("trainer")
    process, late = await node.share(), await node.share()
    await process("hello")
    await process("charge", 0, 100)
    before = await process("limits")
    node.pods.clear()
    node.allocations.clear()
    node.resizing.refresh()
    refused = (await late("hello"))["refused"]
    assert refused == f"this node has no pod with the UID {named.uid('trainer')}"
    assert await process("limits") == before
    assert not await process("take", 0, GIB)
    assert node.used() == (100,)
    await process.kill()
    await waiting.until(lambda: node.used() is None)
    assert list((node.directory / "state").iterdir()) == []


@pytest.mark.slow
async def test_a_pod_of_the_same_name_inherits_nothing(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    first = await node.share()
    await first("hello")
    await first("charge", 0, 100)
    node.pods.clear()
    node.allocations.clear()
    node.add_pod("other")
    node.pods[0]["metadata"]["name"] = "trainer"
    two = await node.share("other")
    assert "refused" in await two("hello")  # the ledger says that the allocation belongs to another pod
    node.allocations.clear()
    node.pods.clear()
    node.add_pod("other")
    three = await node.share("other")
    assert (await three("hello"))["slot"] == 0
    assert await three("sum", 0) == 0
    assert node.used() == (100,)


async def test_a_stopped_process_keeps_its_memory_and_delays_no_other(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    stopped, other = await node.share(), await node.share()
    await stopped("hello")
    await other("hello")
    await stopped("charge", 0, 100)
    os.kill(stopped.pid, signal.SIGSTOP)
    for _ in range(50):  # each has its own limit
        assert await other("reclaim") == 0
        assert await other("sum", 0) == 100
    await node.stop()
    await node.start()
    assert node.used() == (100,)
    os.kill(stopped.pid, signal.SIGCONT)
    await stopped("close")
    assert (await stopped("hello"))["slot"] == 0
    assert await stopped("sum", 0) == 100
