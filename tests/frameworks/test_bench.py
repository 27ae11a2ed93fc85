"""The programs of bench/gpu that use PyTorch, in a share of a simulated GPU. Their results are tested, not their
speed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cuda import share

pytestmark = pytest.mark.slow

PROGRAMS = "bench.gpu.programs"


async def ask(python: Path, shares: share.Shares, *commands: dict[str, object]) -> list[tuple[str, dict[str, Any]]]:
    """Run a worker with these commands and return its answers."""
    process = shares.start(shares.add(), [python, "-m", f"{PROGRAMS}.torch_worker"])
    assert process.stdin is not None
    process.stdin.write("".join(json.dumps(command) + "\n" for command in commands))
    lines = (await shares.finish(process)).splitlines()
    return [(line.partition(" ")[0], json.loads(line.partition(" ")[2])) for line in lines]


async def test_a_worker_does_one_workload_after_another(pytorch: Path, shares: share.Shares) -> None:
    run: dict[str, object] = {"run": 0.3}
    names = ("small", "graph", "capture")
    commands: list[dict[str, object]] = [command for name in names for command in ({"prepare": name}, run)]
    (ready, facts), *answers = await ask(pytorch, shares, *commands, {"drop": True})
    assert ready == "ready"
    assert facts["total"] == share.SHARE_BYTES
    assert [word for word, _ in answers] == ["prepared", "done"] * len(names) + ["dropped"]
    measured = [answer for word, answer in answers if word == "done"]
    assert all(answer["rate"] > 0 for answer in measured)
    assert all(answer["p50_ms"] <= answer["p99_ms"] <= answer["longest_ms"] for answer in measured)
    assert not any("failures" in answer for answer in measured), "each graph that was captured does what it should"
    assert answers[-1][1] == {"reserved": 0}


async def test_a_worker_goes_on_after_a_workload_that_failed(pytorch: Path, shares: share.Shares) -> None:
    commands: list[dict[str, object]] = [{"prepare": "none"}, {"run": 1}, {"prepare": "small"}, {"run": 0.1}]
    answers = (await ask(pytorch, shares, *commands))[1:]
    assert [word for word, _ in answers] == ["failed", "failed", "prepared", "done"]
    assert "KeyError: 'none'" in answers[0][1]["error"]
    assert "write prepare" in answers[1][1]["error"]


@pytest.mark.parametrize("setting", ["backend:native", "expandable_segments:True", "backend:cudaMallocAsync"])
async def test_a_share_is_filled_twice_by_each_allocator(pytorch: Path, shares: share.Shares, setting: str) -> None:
    command = [pytorch, "-m", f"{PROGRAMS}.fill_frameworks", "torch", str(share.SHARE_BYTES)]
    said = await shares.run(shares.add(), [*command, f"PYTORCH_CUDA_ALLOC_CONF={setting}"])
    word, _, document = said.splitlines()[0].partition(" ")
    seen = json.loads(document)
    assert word == "filled"
    assert seen["total"] == share.SHARE_BYTES
    first, second = seen["filled"]
    assert share.SHARE_BYTES - (64 << 20) < first == second <= share.SHARE_BYTES
    assert all(how[0].startswith("OutOfMemoryError") for how in seen["raised"])
