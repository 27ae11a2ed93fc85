"""The audit loop: failures are reported and do not end it, and Events are limited."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.audit import auditor
from deviceplugin.audit.overhead import ContextCheckpoint, ContextSizes
from deviceplugin.hardware import nvml
from deviceplugin.hardware.nvml import Driver
from deviceplugin.link.arbiter import Arbiter
from deviceplugin.state.node_state import ObservableGpus
from gpushare.gpunode import Gpu, GpuNode
from gpushare.refusal import Refusal
from tests.deviceplugin import arbiter_node, linked

UUID = "GPU-00000000-0000-0000-0000-00000000000a"
STAT = "{} (cuda job) S " + " ".join(["0"] * 18) + " 77 0\n"


class Listing:
    """NVML's process lists, with errors."""

    def __init__(self, pids: range) -> None:
        self.pids = pids
        self.problem: Exception | None = None

    def users(self, _: str) -> list[nvml.NvmlProcess]:
        if self.problem is not None:
            raise self.problem
        return [nvml.NvmlProcess(pid, 1) for pid in self.pids]

    def utilization(self, *_: object) -> None:
        return None


class Node:
    """An auditor that records what it reports."""

    def __init__(self, directory: Path, listing: Listing, arbiter: Arbiter) -> None:
        self.warned: list[str] = []
        self.changes = 0
        gpus = ObservableGpus((Gpu(UUID, 0, "A100", 40 << 30),))
        self.auditor = auditor.Auditor(
            Driver(listing),  # type: ignore[arg-type]
            arbiter,
            ContextSizes(ContextCheckpoint(directory), gpus),
            gpus=lambda: gpus.gpus,
            node=lambda: GpuNode("node-a"),
            pods=list,
            warn=lambda _, note, __: self.warned.append(note),
            changed=self._changed,
            node_name="node-a",
            identify=lambda _: Refusal("no pod"),
            proc=directory / "proc",
            wall_clock=lambda: 12.0,
        )

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
async def arbiter(short_path: Path) -> AsyncIterator[Arbiter]:
    async with arbiter_node.opened(short_path) as node:
        with linked.to(node) as link:
            yield link.arbiter


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    made = Listing(range(100, 130))
    for pid in made.pids:
        directory = tmp_path / "proc" / str(pid)
        directory.mkdir(parents=True)
        (directory / "stat").write_text(STAT.format(pid))
        (directory / "comm").write_text("cuda job\n")
    return made


async def test_events_per_audit_are_limited_but_the_document_is_complete(
    tmp_path: Path, listing: Listing, arbiter: Arbiter
) -> None:
    node = Node(tmp_path, listing, arbiter)
    assert node.auditor.document() is None
    measured = []
    for _ in range(3):
        measured.append(node.auditor.has_measured)
        await node.auditor.step()
    assert measured == [False, False, True]
    assert len(node.warned) == auditor.MAX_EVENTS < len(listing.pids)
    document = node.auditor.document()
    assert document is not None
    assert [process["state"] for process in document["gpus"][0]["processes"]] == ["foreign"] * 30
    assert document == json.loads(json.dumps(document))
    assert node.changes == 2  # first True, then False


async def test_failed_audit_is_reported_and_the_next_one_runs(
    tmp_path: Path, listing: Listing, arbiter: Arbiter, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path, listing, arbiter)
    listing.problem = LookupError("what nobody thought of")
    await node.auditor.step()
    (condition,) = node.auditor.conditions
    assert (condition.status, condition.message) == ("Unknown", "the audit failed: what nobody thought of")
    assert "The audit failed" in caplog.text
    listing.problem, listing.pids = None, range(0)
    await node.auditor.step()
    assert node.auditor.conditions[0].status == "True"
    assert node.auditor.has_measured
