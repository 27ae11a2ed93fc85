"""One plan of `kubectl gpushare defrag`: its process's resources, and a replica's longest stall meanwhile."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from burst import webhooks

from lab import build
from large import phases

MOVES = 5


@dataclasses.dataclass(frozen=True)
class Planned:
    """moves: in the plan. stall_seconds: the replica's slowest answer during planning."""

    moves: int
    cpu_seconds: float
    peak_bytes: int
    stall_seconds: float


def measure(replica: webhooks.Replica, kubeconfig: Path) -> Planned:
    """Make one plan. Raises RuntimeError if there is none."""
    with phases.Watched(replica) as watched:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kubectl_gpushare",
                "defrag",
                f"--moves={MOVES}",
                f"--kubeconfig={kubeconfig}",
                "-ojson",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "KUBECTL_PATH": str(build.kubectl())},
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the plan ended with {process.returncode}")
    phase = watched.phase(0.0)
    moves = sum(len(step["moves"]) for step in json.loads(output)["steps"])
    return Planned(moves, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, phase.stall_seconds)
