"""A few steps of `bench/mixed.py`: random pods on GPUs that are shared in different ways, while parts are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lab import lab_layout

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
BENCH = Path(__file__).resolve().parents[2] / "bench" / "mixed.py"
STEPS = 8


def test_ledger_nvml_audit_and_containers_agree(installed: lab_layout.Layout) -> None:
    seed = random.randrange(1000)
    command = [sys.executable, str(BENCH), f"--lab={installed.directory}", f"--steps={STEPS}", f"--seed={seed}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    figures = {row["figure"].removeprefix("mixed."): row["value"] for row in rows}
    assert figures, done.stdout + done.stderr
    assert (figures["steps"], figures["over-commitments"], figures["contradictions"]) == (STEPS, 0, 0), done.stdout
    assert figures["pods.placed"] > 0
    assert figures["ledger.versions"] > 0
