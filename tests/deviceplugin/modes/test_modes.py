"""Mode changes, on the simulated driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.modes import modes_table

pytestmark = pytest.mark.slow


def run(program: str, gpus: Path, *arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.deviceplugin.modes.{program}", *arguments],
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
    run("modes_table", gpus, gpus, short_path / "node", event)


@pytest.mark.parametrize("program", ["modes_stories", "first_looks", "slow_stories", "mig_stories"])
def test_all_stories_of_a_program(simulation: None, short_path: Path, program: str) -> None:
    run(program, short_path, short_path)
