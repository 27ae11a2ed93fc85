"""After a forced deletion of a pod, the next share on its GPU waits for the memory that its processes still hold."""

from __future__ import annotations

import asyncio

import pytest

from tests.deviceplugin import waiting
from tests.deviceplugin.arbiter_node import GIB, ArbiterNode


def delete_by_force(node: ArbiterNode, name: str) -> None:
    """Remove pod and share while the processes run on."""
    node.pods = [pod for pod in node.pods if pod["metadata"]["name"] != name]
    node.allocations = [entry for entry in node.allocations if entry.id != f"of-{name}"]
    node.resizing.refresh()


async def test_a_share_starts_once_the_previous_ones_memory_is_free(node: ArbiterNode) -> None:
    node.gpu_bytes = 4 * GIB
    node.add_pod("old", memory=3 * GIB)
    old = await node.share("old")
    await old("hello")
    await old("charge", 0, 2 * GIB)
    delete_by_force(node, "old")
    node.add_pod("new", memory=3 * GIB)
    new = await node.share("new")
    hello = asyncio.create_task(new("hello"))
    await waiting.until(lambda: node.server.connections == 2)
    done, _ = await asyncio.wait({hello}, timeout=0.5)
    assert not done
    await old.kill()
    assert await hello == {"gpus": 1, "slot": 0}


@pytest.mark.parametrize(("used", "memory"), [(GIB, 3 * GIB), (2 * GIB, 2 * GIB)])
async def test_a_share_that_fits_next_to_the_departed_one_starts_at_once(
    node: ArbiterNode, used: int, memory: int
) -> None:
    node.gpu_bytes = 4 * GIB
    node.add_pod("old", memory=3 * GIB)
    old = await node.share("old")
    await old("hello")
    await old("charge", 0, used)
    delete_by_force(node, "old")
    node.add_pod("new", memory=memory)
    assert await (await node.share("new"))("hello") == {"gpus": 1, "slot": 0}


async def test_existing_pods_are_not_waited_for(node: ArbiterNode) -> None:
    """The lookup does not wait even if the ledger gives more than the GPU has."""
    node.gpu_bytes = 4 * GIB
    for name in ("one", "two"):
        node.add_pod(name, memory=3 * GIB)
        process = await node.share(name)
        assert await process("hello") == {"gpus": 1, "slot": 0}
        await process("charge", 0, 3 * GIB)


async def test_after_the_timeout_the_refusal_names_the_pod(node: ArbiterNode) -> None:
    await node.stop()
    node.gpu_bytes, node.departed_seconds = 4 * GIB, 0.2
    await node.start()
    node.add_pod("old", memory=3 * GIB)
    old = await node.share("old")
    await old("hello")
    await old("charge", 0, 2 * GIB)
    delete_by_force(node, "old")
    node.add_pod("new", memory=3 * GIB)
    refused = (await (await node.share("new"))("hello"))["refused"]
    assert refused.startswith("processes of default/old, which was deleted, still hold 2Gi of GPU-")
