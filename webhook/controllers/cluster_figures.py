"""What Prometheus is told of all GPUs by the replica that is the placer.

The others have no such series, so that a sum over replicas counts no GPU twice. A GPUNode is looked at again only when
it, or what is typical, has changed, and not in a scrape but before, a little at a time: this process answers reviews.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpushare import accounting
from gpushare.gpunode import GpuNode
from gpushare.mix import Mix

PAUSE_SECONDS: Final = 2.0
SLICE_SECONDS: Final = 0.005  # so long at a time, and then as long for others


class ClusterFigures(Collector):
    """`nodes` as they are stored; `mix`: what this cluster asks for; `leads`: whether we are the placer."""

    def __init__(
        self, *, leads: Callable[[], bool], nodes: Callable[[], Iterable[GpuNode]], mix: Callable[[], Mix]
    ) -> None:
        self._leads = leads
        self._nodes = nodes
        self._mix = mix
        self._judged_by: Mix | None = None
        self._known: dict[str, tuple[GpuNode, accounting.Parts]] = {}

    async def run(self) -> None:
        """Count again and again, until cancelled."""
        while True:
            await self.count()
            await asyncio.sleep(PAUSE_SECONDS)

    async def count(self) -> None:
        """Look at what has changed."""
        mix = self._mix()
        known = self._known if mix is self._judged_by else {}
        typical = functools.cache(mix.typical)
        parts_of: dict[str, tuple[GpuNode, accounting.Parts]] = {}
        began = time.monotonic()
        for node in list(self._nodes()) if self._leads() else ():
            before = known.get(node.name)
            parts_of[node.name] = before if before and before[0] is node else (node, accounting.divide(node, typical))
            if time.monotonic() - began > SLICE_SECONDS:
                await asyncio.sleep(SLICE_SECONDS)
                began = time.monotonic()
        self._known, self._judged_by = parts_of, mix

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: what there is depends on the cluster."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything, as it was last counted."""
        gpus = GaugeMetricFamily(
            "gpushare_placer_gpus",
            "GPUs of the cluster by what they are used for, in parts of GPUs; only of the replica that leads.",
            labels=["model", "state"],
        )
        by_node = GaugeMetricFamily(
            "gpushare_placer_node_gpus",
            "GPUs that the GPUNode of a node lists; only of the replica that leads.",
            labels=["node"],
        )
        total: dict[tuple[str, str], float] = collections.defaultdict(float)
        for node, parts in self._known.values() if self._leads() else ():
            by_node.add_metric([node.name], len(node.gpus))
            for key, part in parts.items():
                total[key] += part
        for model in sorted({model for model, _ in total}):
            for (
                state
            ) in accounting.PartState:  # all of them, so that a line in a graph ends at 0 and does not break off
                gpus.add_metric([model, state], total[model, state])
        yield from (gpus, by_node)
