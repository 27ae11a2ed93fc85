"""`python -m webhook.planner`: one plan. On stdin what is asked, as JSON; on stdout a suggestion.

It gives way to the webhook beside it: lowest priority, and no more memory than the container has left.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path
from typing import Final

from gpushare import errors
from gpushare.cluster import api_client, api_errors
from gpushare.defragmentation import goals, relocating
from gpushare.placement_profile import PlacementProfile
from webhook.planner import reading
from webhook.planner.process import Question
from webhook.planner.suggested_plan import SuggestedPlan

NICENESS: Final = 19
SPARE_BYTES: Final = 32 << 20  # of the container's memory, for the webhook
_CGROUP: Final = Path("/sys/fs/cgroup")
OUT_OF_MEMORY: Final = "a plan takes more memory than the limit of the webhook's container leaves: raise that limit"


def main() -> int:
    """Print the suggestion, or on stderr the sentence that says why there is none; return the exit code."""
    os.nice(NICENESS)
    question = Question(**json.loads(sys.stdin.read()))
    _bound_memory()
    try:
        sys.stdout.write(asyncio.run(_suggest(question)).write())
    except MemoryError:
        sys.stderr.write(OUT_OF_MEMORY)
        return 1
    except (api_errors.ClusterError, errors.GpushareError) as error:
        sys.stderr.write(str(error))
        return 1
    return 0


async def _suggest(question: Question) -> SuggestedPlan:
    async with api_client.connect(question.kubeconfig, component="planner") as api:
        state = await reading.read(api, settled=frozenset(question.settled))
    world = state.world(PlacementProfile.read(question.profile))
    waiting = goals.waiting(world, state.pods)
    plan = relocating.plan(world, waiting, state.budgets, max_moves=question.most, min_gain=question.least_gain)
    return SuggestedPlan.of(plan)


def _bound_memory() -> None:
    """Have allocation fail where the kernel would otherwise end every process of the container."""
    left = _left_bytes()
    if left is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (left, left))


def _left_bytes() -> int | None:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        figures = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdecimal():
        return None
    return max(SPARE_BYTES, int(limit) - int(used) + int(figures.get("inactive_file", 0)) - SPARE_BYTES)


if __name__ == "__main__":
    sys.exit(main())
