"""One plan of the standing defragmentation: what its process takes, and for how long the replica beside it stalls."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from burst import webhooks

from gpushare.placement_profile import PlacementProfile
from large import phases
from webhook.controllers import defragmenter
from webhook.planner.process import Question
from webhook.planner.suggested_plan import SuggestedPlan

MOVES = 5


@dataclasses.dataclass(frozen=True)
class Planned:
    """moves: that the plan has. stall_seconds: the longest that the replica took to answer meanwhile."""

    moves: int
    cpu_seconds: float
    peak_bytes: int
    stall_seconds: float


def measure(replica: webhooks.Replica, kubeconfig: Path) -> Planned:
    """Has the planner make one plan. Raises RuntimeError if there is none."""
    question = Question(PlacementProfile().data(), MOVES, [], defragmenter.MIN_GAIN, str(kubeconfig))
    with phases.Watched(replica) as watched:
        process = subprocess.Popen(
            [sys.executable, "-m", "webhook.planner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(dataclasses.asdict(question)))
        process.stdin.close()
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the planner ended with {process.returncode}")
    phase = watched.phase(0.0)
    moves = len(SuggestedPlan.read(output).moves)
    return Planned(moves, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, phase.stall_seconds)
