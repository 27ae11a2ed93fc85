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
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import __main__ as bench
from bench.gpu import rehearsal

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("aiohttp", "grpcio", "nvidia-ml-py", "prometheus-client", "pytest", "pyyaml")
GIB = 1 << 30
WINDOW_SECONDS = 0.1
FRAMEWORK_CASES: frozenset[str] = frozenset()

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


def rehearse(part: str, image: Path, results: Path) -> subprocess.CompletedProcess[str]:
    python = Path(sys.executable).resolve()  # that has nothing of the virtual environment
    command = rehearsal.command(part, python, results, ["--window", str(WINDOW_SECONDS)], path=str(image))
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)


def figures_of(results: Path, part: str) -> tuple[str, dict[str, Any]]:
    (page,) = results.glob(f"*-gpu-nvidia-h100-80gb-hbm3-simulated-{part}.md")
    document = json.loads(page.with_suffix(".json").read_text())
    return page.read_text(), {figure["figure"]: figure["value"] for figure in document["figures"]}


def test_the_first_command_measures_all_that_is_most_wanted(image: Path, tmp_path: Path) -> None:
    result = rehearse("first", image, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    page, figures = figures_of(tmp_path, "first")
    assert page in result.stdout, "the tables are the end of the output"
    assert "Left out" not in page
    assert "driver: 580.159.04" in page
    assert figures["gpu.facts.intercepted"] == 1
    assert -GIB < figures["gpu.memory.plain.4.gpushare.beyond"] <= 0
    # Contexts of 528 MiB: unknown before the first processes, charged before the second ones make theirs.
    limit = figures["gpu.audit.first.gpu"] / 1.0
    assert figures["gpu.audit.second.gpu"] < limit
    for name in set(bench.FIRST) - FRAMEWORK_CASES:
        assert re.search(rf"^{name}: \d+ s of", result.stdout, re.MULTILINE), name


def test_the_second_command_goes_on_with_the_rest(image: Path, tmp_path: Path) -> None:
    result = rehearse("second", image, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    page, _ = figures_of(tmp_path, "second")
    assert "Left out" not in page
    assert "not installed" in page


def test_the_tests_for_a_gpu_pass_there(image: Path) -> None:
    few = "filled or killed or sees"  # how exact shares are is for a machine that has nothing else to do
    python = Path(sys.executable).resolve()
    variables = [f"PATH={os.environ['PATH']}", f"PYTHONPATH={image}", "HOME=/root", "GPUSHARE_TEST_GPU=simulated"]
    pytest_command = ["-m", "pytest", "-q", "-c", "tests/gpu/pytest.ini", "tests/gpu", "-k", few]
    command = ["unshare", "--net", "env", "-i", *variables, str(python), *pytest_command]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
