"""The webhook's CPU time for refusing expensive pods that fit nowhere: 1,000 nodes × 8 GPUs by default.

Any user who can create pods can send reviews at any rate (`--dry-run=server`), and each review delays all others. So
each pod here has the maximum of one thing, or far more, and requests what no node has; then the benchmark searches for
more expensive pods. The figure is the CPU time of a whole review, for a new shape (`first`) and a known one (`again`);
the goal is 20 ms. The baseline is a plain pod that fits nowhere: `ratio` is against it. Each `first` is the best of
several equivalent pods, so no cache helps; `worst` is the slowest of them, which a busy machine stretches.

Prints a table for people, then one JSON object a line per figure.

Run: python bench/refusals.py [--nodes 1000] [--search 30] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import logging
import time
from typing import Any

from refusal import search
from refusal.cluster import cluster
from refusal.pods import CASES, Json, pod

from webhook import metrics, review
from webhook.admission import Admission
from webhook.store.reservation import Reservation

GOAL_MS = 20.0
REPEATS = 5


class Trial:
    """A webhook in memory that reviews pods repeatedly."""

    def __init__(self, nodes: int) -> None:
        store = cluster(nodes)
        self._admission = Admission(store, Reservation(store, policy="fragmentation"), metrics.Metrics())
        self._numbers = itertools.count()

    async def ask(self, manifest: Json) -> tuple[float, str]:
        """Review a pod; return the milliseconds and the outcome."""
        request: review.AdmissionRequest = {
            "uid": "u", "operation": "CREATE", "namespace": "team", "dryRun": True, "object": manifest,
        }  # fmt: skip
        began = time.process_time()
        answer = await self._admission.answer(request)
        spent = time.process_time() - began
        return spent * 1000, f"{answer.outcome}: {answer.message or answer.audit.get('decision', '')}"

    async def first(self, manifest: Json) -> tuple[float, str]:
        """Review an equivalent pod that no cache knows."""
        return await self.ask(search.unlike(manifest, next(self._numbers)))

    async def cost(self, manifest: Json) -> float:
        """Return the milliseconds of a refused pod's first review; 0 for a placed pod."""
        spent, outcome = await self.first(manifest)
        return spent if "placed" not in outcome else 0.0


async def figures(trial: Trial, cases: dict[str, Json]) -> dict[str, dict[str, Any]]:
    """Return, by case, the best and worst milliseconds of first reviews, the best of repeated ones, and the outcome."""
    await trial.ask(pod(request="0.99", memory="79Gi"))  # fills the caches of the first review
    times = {}
    for name, manifest in cases.items():
        _, outcome = await trial.ask(manifest)
        gc.collect()
        firsts = [(await trial.first(manifest))[0] for _ in range(REPEATS)]
        again = min([(await trial.ask(manifest))[0] for _ in range(3)])
        times[name] = {"first": min(firsts), "worst": max(firsts), "again": again, "outcome": outcome}
    return times


async def everything(nodes: int, seconds: float, seed: int) -> dict[str, dict[str, Any]]:
    trial = Trial(nodes)
    times = await figures(trial, CASES)
    if seconds:
        dear = await search.dearest(trial.cost, seconds=seconds, seed=seed)
        times |= await figures(trial, {f"found {number}": manifest for number, (_, manifest) in enumerate(dear, 1)})
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--search", type=float, default=30.0, help="CPU seconds of the search")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    times = asyncio.run(everything(asked.nodes, asked.search, asked.seed))
    whens = ("first", "worst", "again")
    print(f"{'pod':32} {'first ms':>9} {'worst ms':>9} {'again ms':>9}  outcome")
    for name, row in times.items():
        print(f"{name:32} {row['first']:9.1f} {row['worst']:9.1f} {row['again']:9.1f}  {row['outcome'][:80]}")
    for name, row in times.items():
        for when in whens:
            figure = {
                "figure": f"refusal.{name}.{when}",
                "value": round(row[when], 2),
                "unit": "ms",
                "against": "plain",
            }
            print(json.dumps({**figure, "ratio": round(row[when] / times["plain"][when], 2), "goal": GOAL_MS}))


if __name__ == "__main__":
    main()
