"""Process: runs the planner, which lists the cluster by itself, and ends it when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from typing import Final

from webhook.planner.suggested_plan import SuggestedPlan

MAX_SECONDS: Final = 600.0
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each would take memory of its own
_MAX_ERROR: Final = 500


class PlanningError(Exception):
    """There is no plan; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What is asked. profile: `PlacementProfile.data`. most: moves. settled: UIDs of owners whose pods stay.

    least_gain: GPUs per move, of each chain of moves.
    """

    profile: dict[str, str]
    most: int
    settled: list[str]
    least_gain: float
    kubeconfig: str | None = None


async def suggest(question: Question) -> SuggestedPlan:
    """The moves that the planner suggests. Raises PlanningError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "webhook.planner"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
        )
    except OSError as error:
        raise PlanningError(f"the planner could not be started: {error}") from error
    try:
        async with asyncio.timeout(MAX_SECONDS):
            output, said = await process.communicate(json.dumps(dataclasses.asdict(question)).encode())
    except TimeoutError as error:
        raise PlanningError(f"the plan was not made in {MAX_SECONDS:.0f} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        if process.returncode == 0:
            return SuggestedPlan.read(output.decode())
    except (ValueError, KeyError, TypeError) as error:
        raise PlanningError(f"what the planner wrote is no suggestion: {error!r}") from error
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    raise PlanningError(last[-_MAX_ERROR:] or f"the planner ended with {process.returncode}")
