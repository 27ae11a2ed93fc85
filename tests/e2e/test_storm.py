"""One round of a storm on the node: pods, GPUs, agent and kubelet come and go. `bench/storm.py` runs longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import lab_layout

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]  # for a busy machine
BENCH = Path(__file__).resolve().parents[2] / "bench" / "storm.py"


def test_the_kubelet_rejects_no_pod_with_an_agent_and_all_placed_pods_run(
    installed: lab_layout.Layout,
) -> None:
    # Like all random tests, the same on every run of continuous integration.
    seed = ["--seed=1"] if os.environ.get("CI") else []
    command = [sys.executable, str(BENCH), f"--lab={installed.directory}", "--seconds=0", "--pause=0.4", *seed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout + done.stderr
    report = json.loads(lines[-1])
    assert (report["refused"], report["over-committed"], report["stuck"]) == (0, 0, []), done.stdout
    assert report["kubelets killed"] == 1
    # Without this, every rejection would be excused.
    for absence in ("longest without an agent, seconds", "longest from a kubelet's start to the agent, seconds"):
        assert report[absence] < report["seconds"] + 60, done.stdout
    assert report["pods ran"]
    assert report["versions"]
    assert done.returncode == 0
