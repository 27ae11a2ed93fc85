"""The run on a GPU machine, rehearsed: both commands, as they are typed there, where nothing is that is not there.

Such a machine has Ubuntu's Python with the packages below and none of this project's, no network, no Kubernetes, and an
empty environment. Only the GPU is simulated, and the windows are short.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import __main__ as bench
from bench.gpu import rehearsal
from bench.gpu.report import narrow

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("aiohttp", "grpcio", "nvidia-ml-py", "prometheus-client", "pytest", "pyyaml")
WINDOW_SECONDS = 0.1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each program gets a mount namespace of its own"),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python path that has these packages, what they need, and nothing else."""
    directory = tmp_path_factory.mktemp("image")
    left, done = list(PACKAGES), set()
    while left:
        name = left.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # needed elsewhere: another Python or another system
        if name in done:
            continue
        done.add(name)
        left += [re.split(r"[^\w.-]", need)[0] for need in distribution.requires or () if "extra ==" not in need]
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            if not (directory / top).exists():
                (directory / top).symlink_to(distribution.locate_file(top))
    return directory


@dataclass(frozen=True)
class Rehearsed:
    """One command: its exit code and output, its page, its figures by name."""

    code: int
    output: str
    page: str
    figures: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def rehearsed(image: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rehearsed]:
    """Both commands, at the same time: each has its own simulated GPUs, and mostly waits."""
    python = Path(sys.executable).resolve()  # that has nothing of the virtual environment
    results = tmp_path_factory.mktemp("results")
    running = {}
    for part in rehearsal.LIMIT_SECONDS:
        command = rehearsal.command(part, python, results, ["--window", str(WINDOW_SECONDS)], path=str(image))
        running[part] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ended = {}
    for part, process in running.items():
        output, _ = process.communicate(timeout=250)
        (page,) = results.glob(f"*-gpu-nvidia-h100-80gb-hbm3-simulated-{part}.md")
        figures = json.loads(page.with_suffix(".json").read_text())["figures"]
        by_name = {figure["figure"]: figure for figure in figures}
        ended[part] = Rehearsed(process.returncode, output, page.read_text(), by_name)
    return ended


@pytest.mark.parametrize(("part", "cases"), [("first", bench.FIRST), ("second", bench.SECOND)])
def test_each_command_runs_all_of_its_cases(rehearsed: dict[str, Rehearsed], part: str, cases: tuple[str, ...]) -> None:
    run = rehearsed[part]
    assert run.code == 0, run.output
    assert narrow(run.page) in run.output, "the tables are the end of the output"
    assert "Left out" not in run.page
    assert "Traceback" not in run.output, "an arbiter that fails leaves programs without limits"
    assert not [name for name in run.figures if name.endswith(".failed")]
    for name in cases:
        assert re.search(rf"^{name}: \d+ s of", run.output, re.MULTILINE), name
    assert "driver: 580.159.04" in run.page


def test_the_first_command_compares_limits_with_the_gpus_own_figures(rehearsed: dict[str, Rehearsed]) -> None:
    figures = rehearsed["first"].figures
    assert figures["gpu.facts.intercepted"]["value"] == 1
    assert figures["gpu.memory.plain.4.gpushare.beyond"]["value"] <= 0
    # Contexts of 528 MiB: unknown when the first processes make theirs, charged before the second ones do.
    assert figures["gpu.audit.first.gpu"]["ratio"] > 1
    assert figures["gpu.audit.second.gpu"]["ratio"] <= 1


def test_shares_with_the_isolation_mps_are_clients_of_the_daemon(rehearsed: dict[str, Rehearsed]) -> None:
    figures = rehearsed["second"].figures
    survived = {mode: figures[f"gpu.fault.illegal.{mode}.survived"]["value"] for mode in ("gpushare", "gpushare-mps")}
    assert survived == {"gpushare": 1, "gpushare-mps": 0}, "a fault ends the clients of a daemon together"


def test_what_is_not_installed_is_a_row_that_says_so(rehearsed: dict[str, Rehearsed]) -> None:
    assert "not installed: No module named 'torch'" in rehearsed["first"].page
    assert "not installed: No module named 'jax'" in rehearsed["second"].page


def test_the_tests_for_a_gpu_pass_there(image: Path) -> None:
    few = "filled or killed or sees"  # how exact shares are is for a machine that has nothing else to do
    python = Path(sys.executable).resolve()
    variables = [f"PATH={os.environ['PATH']}", f"PYTHONPATH={image}", "HOME=/root", "GPUSHARE_TEST_GPU=simulated"]
    pytest_command = ["-m", "pytest", "-q", "-c", "tests/gpu/pytest.ini", "tests/gpu", "-k", few]
    command = ["unshare", "--net", "env", "-i", *variables, str(python), *pytest_command]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
