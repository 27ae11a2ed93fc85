"""A small cluster through all that `make scale` does to a large one: the bench says that all is accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]  # a busy machine takes its time
BENCH = Path(__file__).resolve().parents[2] / "bench" / "scale.py"
SIZE = ("--nodes=8", "--pods=60", "--shares=20", "--burst=30", "--rounds=1", "--waiting=10")


def test_a_replica_starts_goes_on_and_hands_over_among_pods_of_others() -> None:
    command = [sys.executable, str(BENCH), *SIZE, "--kinds=2 replicas", "--quiet=0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    figures = {figure["figure"]: figure["value"] for figure in records}
    # Pods of a burst that are neither placed nor gated with a reason, shares without a pod, GPUs given away twice.
    assert figures["admission.2-replicas.problems"] == 0
    assert figures["admission.2-replicas.placed"] + figures["admission.2-replicas.gated"] == 30
    assert 0 < figures["scale.restart-of-the-API-server.left"] < 512
    assert figures["scale.waiting.handed-over.longest"]
