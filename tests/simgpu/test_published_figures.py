"""Two decoding models on a simulated GPU, compared with published figures of real ones: see bench/simulated_time.py."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.programs import decoding
from tests.programs import command
from tests.simgpu import mps_node
from tests.simgpu.conftest import Node, finishing
from tests.simgpu.programs import mps as programs
from tests.simgpu.test_rendezvous import says

pytestmark = pytest.mark.slow

POINTS = 5
STEPS, EXCLUDED = 24, 6


def step_ms(node: Node, kernel: str, environment: Mapping[str, str], start: Path) -> float:
    """Return the milliseconds between steps of two processes that run this kernel again and again."""
    start.write_bytes(bytes(mmap.PAGESIZE))
    starts = command(programs.runs_steps, kernel, STEPS, EXCLUDED, str(start))
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(finishing(node.start(starts, environment))) for _ in range(2)]
        assert [says(process) for process in pair] == ["ready", "ready"]
        with start.open("r+b") as file:
            file.write((1).to_bytes(4, "little"))
        return sum(float(says(process)) for process in pair) / 2


@pytest.mark.parametrize(
    ("way", "published"), [("time slices", decoding.SLICED), ("MPS", decoding.MPS)], ids=["slices", "mps"]
)
def test_pair_is_as_fast_as_published(tmp_path: Path, way: str, published: Sequence[float]) -> None:
    node = Node(decoding.create(tmp_path))
    table = []
    with mps_node.daemon(node, tmp_path / "mps") as mps:
        half = {**mps.environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
        for requests, figure in zip(decoding.REQUESTS, published, strict=True):
            own_ms = step_ms(node, decoding.kernel(requests / 2), half if way == "MPS" else {}, tmp_path / "start")
            percent = 100 * decoding.step_ns(requests) / 1e6 / own_ms
            table.append((requests, figure, round(percent, 1)))
    assert all(abs(simulated - figure) < POINTS for _, figure, simulated in table), table
