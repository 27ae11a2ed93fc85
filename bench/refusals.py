"""The webhook's CPU time for refusing expensive pods that fit nowhere: 1,000 nodes × 8 GPUs by default.

Any user who can create pods can send reviews at any rate (`--dry-run=server`), and each review delays all others. So
each pod here has the maximum of one thing, or far more, and requests what no node has; then the benchmark searches for
more expensive pods. The figure is the CPU time of a whole review, for a new shape (`first`) and a known one (`again`);
the goal is 20 ms. The baseline is a plain pod that fits nowhere: `ratio` is against it. Each `first` is the best of
several equivalent pods, so no cache helps; `worst` is the slowest of them, which a busy machine stretches.

With `--shapes`, the webhook's chooser alone refuses so many ordinary pods, once each and in a cluster where 90 % of the
GPUs are in use; a share grows before each pod. The goal is a p90 of 4 ms; `again` are the same pods once
more.

Prints a table for people, then one JSON object a line per figure.

Run: python bench/refusals.py [--nodes 1000] [--search 30] [--seed 1] [--shapes 600]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import itertools
import json
import logging
import os
import random
import statistics
import time
from typing import Any

from refusal import search
from refusal.cluster import cluster
from refusal.pods import CASES, Json, ordinary, pod

from gpushare import request
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal
from webhook import metrics, review
from webhook.admission import Admission
from webhook.store.reservation import Reservation

GOAL_MS = 20.0
CHOOSER_GOAL_MS = 4.0  # p90
BUSY = (82, 99)  # percent of a GPU that each pod has: 90 on average
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
        firsts = []
        for _ in range(REPEATS):
            spent, others = await trial.first(manifest)
            assert others.partition(":")[0] == outcome.partition(":")[0], f"{name} is not equivalent: {others}"
            firsts.append(spent)
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


def _grown(node: GpuNode) -> GpuNode:
    """Return the node with more of a GPU in use."""
    first, *others = node.allocations
    shares = tuple(
        dataclasses.replace(share, request_percent=min(100, share.request_percent + 1)) for share in first.shares
    )
    return dataclasses.replace(node, allocations=(*others, dataclasses.replace(first, shares=shares)))


def by_chooser(nodes: int, shapes: int, seed: int) -> None:
    """Measure and print the refusals of the chooser."""
    store, draw = cluster(nodes, percent=BUSY), random.Random(seed)
    names = [view.node.name for view in store.views()]
    asked = [ordinary(draw) for _ in range(shapes)]
    for when in ("first", "again"):
        times = []
        for manifest in asked:
            name = draw.choice(names)
            store.change(name, _grown)
            parsed = request.parse(manifest)
            began = time.thread_time()
            outcome = store.chooser.place(manifest, parsed, policy="fragmentation")
            if isinstance(outcome, Refusal):
                times.append(1000 * (time.thread_time() - began))
        quantiles = statistics.quantiles(times, n=100)
        print(f"chooser, {when}: {len(times)} of {shapes} refused; load {os.getloadavg()[0]:.1f}")
        for percentile in (50, 90, 99):
            figure = {"figure": f"refusal.chooser.{when}.p{percentile}", "value": round(quantiles[percentile - 1], 2)}
            goal = {"against": "goal", "ratio": round(quantiles[percentile - 1] / CHOOSER_GOAL_MS, 2)}
            print(json.dumps({**figure, "unit": "ms", **(goal if percentile == 90 else {})}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--search", type=float, default=30.0, help="CPU seconds of the search")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", type=int, default=0, help="pods for the chooser alone (default: none)")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if asked.shapes:
        by_chooser(asked.nodes, asked.shapes, asked.seed)
        return
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
