"""What is made for machines with a GPU, tried on a simulated one, so that it works when one is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BARE = "/usr/bin/python3"  # without this project's environment: the bench needs none
GIB = 1 << 30
CASES = "calls,splits,latency,memory,reclaim,starts,torch,pairs"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each program gets a mount namespace of its own"),
]


def test_the_bench_measures_and_writes_its_page(tmp_path: Path) -> None:
    python = BARE if Path(BARE).exists() else sys.executable
    command = [python, "-m", "bench.gpu", "--simulated", "--minutes", "1", "--only", CASES, "--results", tmp_path]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (page,) = tmp_path.glob("*-gpu-nvidia-a100-sxm4-40gb-simulated.md")
    figures = {
        figure["figure"]: figure["value"] for figure in json.loads(page.with_suffix(".json").read_text())["figures"]
    }
    assert not {name for name in figures if name.endswith(".failed")}, page.read_text()
    assert -GIB < figures["gpu.memory.plain.4.gpushare.beyond"] <= 0  # less: what contexts take
    assert "A100" in page.read_text()
    assert "no" in page.read_text().split("PyTorch: ")[1]
    assert "Pairs of models: not measured" in page.read_text()


def test_the_tests_for_a_gpu_pass_on_a_simulated_one() -> None:
    few = "filled or killed or sees"  # how exact shares are is for a machine that has nothing else to do
    command = [sys.executable, "-m", "pytest", "-q", "-c", "tests/gpu/pytest.ini", "tests/gpu", "-k", few]
    environment = {**os.environ, "GPUSHARE_TEST_GPU": "simulated", "PYTHONWARNINGS": ""}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
