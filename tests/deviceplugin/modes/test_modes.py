"""Mode changes. Each runs in a separate process with the simulated driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.modes import first_looks, modes_stories, modes_table, slow_stories

pytestmark = pytest.mark.slow


def run(program: str, gpus: Path, directory: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.deviceplugin.modes.{program}", gpus, directory / "node", name],
        env=simulated.environment(gpus),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(
    "event", [name if name == "nothing" else pytest.param(name, marks=pytest.mark.slow) for name in modes_table.EVENTS]
)
def test_each_mode_changes_to_each_other_mode(gpus: Path, short_path: Path, event: str) -> None:
    run("modes_table", gpus, short_path, event)


@pytest.mark.parametrize("story", list(modes_stories.STORIES))
def test_modes_story(gpus: Path, short_path: Path, story: str) -> None:
    run("modes_stories", gpus, short_path, story)


@pytest.mark.slow
@pytest.mark.parametrize("story", list(first_looks.STORIES))
def test_modes_with_gpus_that_cannot_be_read_completely(gpus: Path, short_path: Path, story: str) -> None:
    run("first_looks", gpus, short_path, story)


@pytest.mark.parametrize("story", list(slow_stories.STORIES))
def test_modes_with_slow_or_failing_setup(gpus: Path, short_path: Path, story: str) -> None:
    run("slow_stories", gpus, short_path, story)


def test_mig_devices_for_shares(gpus: Path, short_path: Path) -> None:
    """All stories in one process: starting one costs more than most stories."""
    run("mig_stories", gpus, short_path, "")
