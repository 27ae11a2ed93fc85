"""Reports of the leading replica: the cluster's GPUs for Prometheus."""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpushare import gpu_capacity
from gpushare.gpunode import GpuNode
from gpushare.mix import Mix

logger = logging.getLogger(__name__)

COUNT_SECONDS: Final = 2.0  # between two counts
SLICE_SECONDS: Final = 0.005  # of work, before other tasks have the event loop for as long


class ClusterFigures(Collector):
    """The GPUs of the cluster by use, as metrics of the leader, so that a sum over replicas counts no GPU twice.

    Counting happens between scrapes, a little at a time, because this process answers reviews, and only for nodes that
    have changed. leads: whether this replica is the placer. nodes: as stored. mix: the cluster's typical requests.
    kinds: of isolation that pods which name none may get.
    """

    def __init__(
        self,
        *,
        leads: Callable[[], bool],
        nodes: Callable[[], Iterable[GpuNode]],
        mix: Callable[[], Mix],
        kinds: gpu_capacity.Kinds = gpu_capacity.ARBITER,
    ) -> None:
        self._leads = leads
        self._nodes = nodes
        self._mix = mix
        self._kinds = kinds
        self._counted_with: Mix | None = None
        self._known: dict[str, tuple[GpuNode, gpu_capacity.Parts]] = {}

    async def run(self) -> None:
        while True:
            await self.count()
            await asyncio.sleep(COUNT_SECONDS)

    async def count(self) -> None:
        mix = self._mix()
        known = self._known if mix is self._counted_with else {}
        typical = functools.cache(mix.typical)
        parts_of: dict[str, tuple[GpuNode, gpu_capacity.Parts]] = {}
        began = time.monotonic()
        for node in list(self._nodes()) if self._leads() else ():
            before = known.get(node.name)
            if before is None or before[0] is not node:
                before = node, gpu_capacity.divide(node, typical, self._kinds)
            parts_of[node.name] = before
            if time.monotonic() - began > SLICE_SECONDS:
                await asyncio.sleep(SLICE_SECONDS)
                began = time.monotonic()
        self._known = parts_of
        self._counted_with = mix

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        gpus = GaugeMetricFamily(
            "gpushare_placer_gpus",
            "GPUs of the cluster by use, in parts of GPUs; reported by the leading replica only.",
            labels=["model", "state"],
        )
        by_node = GaugeMetricFamily(
            "gpushare_placer_node_gpus",
            "GPUs that the GPUNode of a node lists; reported by the leading replica only.",
            labels=["node"],
        )
        total: dict[tuple[str, str], float] = collections.defaultdict(float)
        for node, parts in self._known.values() if self._leads() else ():
            by_node.add_metric([node.name], len(node.gpus))
            for key, part in parts.items():
                total[key] += part
        for model in sorted({model for model, _ in total}):
            # also states without GPUs, so that their graphs drop to 0 instead of ending
            for state in gpu_capacity.PartState:
                gpus.add_metric([model, state], total[model, state])
        yield from (gpus, by_node)
