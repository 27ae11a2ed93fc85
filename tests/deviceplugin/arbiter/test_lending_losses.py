"""Lent memory stays counted when a record, a GPUNode or the time since a backup is lost."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.arbiter import lending, orphans
from gpushare import ledger
from gpushare.allocation import GivenShare
from gpushare.gpunode import GpuNode, Resize
from tests.deviceplugin import named, waiting
from tests.deviceplugin.arbiter_node import GPUS, ArbiterNode, Share

OWN, LIMIT, TOTAL = 20, 80, 100


@pytest.fixture
async def lent(node: ArbiterNode, monkeypatch: pytest.MonkeyPatch) -> tuple[ArbiterNode, Share]:
    """A node whose only share uses all that it may be lent, and its process."""
    monkeypatch.setattr(lending, "CHUNK_BYTES", 4)
    node.gpu_bytes = TOTAL
    node.add_pod("trainer", GivenShare(("main",), (GPUS[0],), 10, 100, OWN, memory_limit_bytes=LIMIT))
    confirm(node)
    process = await node.share()
    await process("hello")
    (share,) = node.groups.all()
    await node.resizing.lend(share, 0, LIMIT)
    assert await process("take", 0, LIMIT)
    assert node.resizes == (Resize("of-trainer", 0, LIMIT, 0),)
    return node, process


def confirm(node: ArbiterNode) -> None:
    entries = enumerate(node.allocations)
    node.allocations = [
        dataclasses.replace(entry, pod=dataclasses.replace(entry.pod, uid=named.uid(entry.pod.name)))
        for _, entry in entries
    ]


def counted(node: ArbiterNode) -> int:
    return ledger.use(node.gpunode())[GPUS[0]].memory_bytes


def all_records(state: Path) -> None:
    shutil.rmtree(state)


def one_record(state: Path) -> None:
    (path,) = state.glob("*.json")
    path.unlink()


def unreadable(state: Path) -> None:
    (path,) = state.glob("*.json")
    path.write_text("{")


@pytest.mark.parametrize("lose", [all_records, one_record, unreadable])
async def test_lent_memory_counts_until_the_processes_of_a_lost_record_have_ended(
    lent: tuple[ArbiterNode, Share], lose: Callable[[Path], None]
) -> None:
    node, process = lent
    await node.stop()
    lose(node.directory / "state")
    await node.start()
    node.write_status()
    assert counted(node) == LIMIT
    another = await node.share()
    await another("hello")  # a process with a new record
    node.write_status()
    assert counted(node) == LIMIT
    await node.stop()
    await node.start()  # the agent after that one searches again
    for word in ("close", "hello", "reclaim"):
        await another(word)
    node.write_status()
    assert counted(node) == LIMIT
    await process.kill()
    await waiting.until(lambda: counted(node) == OWN)


async def test_a_share_whose_processes_ended_with_the_agent_returns_what_it_was_lent(
    lent: tuple[ArbiterNode, Share],
) -> None:
    node, process = lent
    await node.stop()
    await process.kill()
    await node.start()
    node.write_status()
    assert counted(node) == LIMIT, "until the search for processes without a record has ended"
    await waiting.until(lambda: counted(node) == OWN)


@pytest.mark.parametrize("most", ["MAX_ORPHANS", "SEARCH_SECONDS"])
async def test_lent_memory_counts_while_a_pod_has_too_many_processes_to_search(
    lent: tuple[ArbiterNode, Share], most: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, _ = lent
    monkeypatch.setattr(orphans, most, 0)
    await node.stop()
    all_records(node.directory / "state")
    await node.start()
    await waiting.until(lambda: "too many processes" in caplog.text)
    node.write_status()
    assert counted(node) == LIMIT


async def test_memory_in_use_counts_after_the_gpunode_was_restored_to_a_state_before_the_loan(
    lent: tuple[ArbiterNode, Share],
) -> None:
    node, process = lent
    node.resizes = ()
    node.write_status()
    assert counted(node) == LIMIT
    ((_, most, *_),) = (await process("limits"))["records"]
    assert most == OWN  # it gets no more
    await node.stop()
    await node.start()  # what the status says is all that the next agent knows
    node.write_status()
    assert counted(node) == LIMIT
    await process("charge", 0, -50)
    await process("close")
    await process("hello")
    await process("reclaim")
    node.write_status()
    await waiting.until(lambda: counted(node) == LIMIT - 50)
    await process("charge", 0, -10)
    await waiting.until(lambda: counted(node) == OWN)


async def test_a_restored_share_waits_until_its_memory_is_not_lent_any_more(lent: tuple[ArbiterNode, Share]) -> None:
    node, _ = lent
    node.departed_seconds = 0.1
    await node.stop()
    await node.start()
    node.add_pod("restored", memory=TOTAL - OWN)
    starting = await node.share("restored")
    answer = await starting("hello")
    assert "other shares still hold 60 of" in str(answer)
    assert ledger.violations(dataclasses.replace(node.gpunode(), gpus=node.gpus()))


async def test_a_lost_gpunode_counts_lent_memory_as_soon_as_the_share_is_restored(
    lent: tuple[ArbiterNode, Share],
) -> None:
    node, _ = lent
    restored, node.allocations, node.resizes = node.allocations, [], ()
    node.resizes = node.resizing.apply(GpuNode("node-a"))
    node.allocations = restored
    assert counted(node) == LIMIT
