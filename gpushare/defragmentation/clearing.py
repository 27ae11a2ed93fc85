"""Clearing: a CPU-only pod leaves a node whose GPUs are worth more without it.

Its gain is read from the engine with the pod taken away, once for each pod until something changes on its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpushare.defragmentation.cpu_only import CpuOnlyPod, CpuOnlyPods
from gpushare.defragmentation.exchanges import Chain, Mover
from gpushare.whatif.world import World

_MAX_ON_A_NODE: Final = 4  # pods that are considered, those with the most CPU
_NO_SHAPE: Final = -1


class Clearings:
    """The clearings of one world, at the prices of its exchanges."""

    def __init__(self, world: World, cpu_only_pods: CpuOnlyPods, prices: Any) -> None:
        self._world = world
        self._pods = cpu_only_pods
        self._prices = prices
        self._gains: dict[str, list[Chain]] = {}  # by node

    def look(self, names: Iterable[str]) -> None:
        """Reads nodes that are new or have changed."""
        for name in names:
            self._gains[name] = [*self._of(name)]

    def chains(self) -> list[Chain]:
        """Those that promise a gain."""
        return [chain for chains in self._gains.values() for chain in chains]

    def on(self, node: str) -> list[CpuOnlyPod]:
        """The pods of a node that may be moved."""
        return self._pods.on(node)

    def _of(self, name: str) -> Iterator[Chain]:
        there = self._pods.on(name)[:_MAX_ON_A_NODE]
        now = self._value(name) if there else 0.0
        for known in there:
            undo = self._world.remove(known.manifest, name, known.entry)
            gain = self._value(name) - now
            undo()
            if gain > 0:
                yield Chain((mover(known),), gain)

    def _value(self, name: str) -> float:
        return float(self._world.engine.values([name], self._prices).sum())


def mover(known: CpuOnlyPod) -> Mover:
    """The pod as one of a chain."""
    return Mover(known.node, known.entry, _NO_SHAPE, known.host)
