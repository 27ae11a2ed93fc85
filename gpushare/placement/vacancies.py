"""Vacancies: nodes as they would be if one of their pods left, each as a column of a grid of its own.

So one pass over the arrays says what every one of those nodes would be worth, and what a pod would cost there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gpushare import policies
from gpushare.gpu import Gpu
from gpushare.mix import Host, Mix
from gpushare.placement import chains
from gpushare.placement.grid import Floats, Grid, Room
from gpushare.placement.pricing import Prices
from gpushare.placement.request_key import RequestKey
from gpushare.placement.scoring import Scoring
from gpushare.placement.view import NodeView
from gpushare.placement.worth import Worth
from gpushare.request import Request


class Vacancies:
    """Keyed by any string; a key has the same slot until it is dropped. Not for threads."""

    def __init__(self, mix: Mix, worth: Worth, kinds: Sequence[Gpu | None], prices: Prices) -> None:
        """`worth`: the mix's tables; `kinds`: those that it and the prices are of, in their order."""
        self._grid = Grid()
        for kind in kinds:
            if kind is not None:
                self._grid.kind_of(kind)
        self._scoring = Scoring(self._grid, mix)
        self._scoring.learn(mix, worth)
        self._scoring.fix(prices)
        self._prices = prices

    def put(self, key: str, view: NodeView, room: Room) -> int:
        """A node without the pod, with so much CPU and memory free; its slot."""
        node = dataclasses.replace(view.node, name=key)
        return self._grid.put(dataclasses.replace(view, node=node), room)

    def drop(self, key: str) -> None:
        """This one is no more."""
        self._grid.drop(key)

    def chains(
        self,
        slots: Sequence[int],
        shape: Sequence[int],
        node: Sequence[int],
        *,
        shapes: Sequence[tuple[Request, Host]],
        values: Floats,
        lowest: Sequence[float],
        waiting: Mapping[int, float],
        most: int,
    ) -> list[tuple[float, list[int]]]:
        """`chains.chains` of the pods that left these slots; the places in `slots` stand for the pods.

        shape, node: their numbers; values [node]: what each node is worth as it is now.
        """
        at, nodes = np.array(slots, np.int64), np.array(node, np.int64)
        freed = self._scoring.values(at, self._prices) - values[nodes]
        costs = np.array([self._costs(request, host)[at] for request, host in shapes])
        numbers = np.array(shape, np.int64)
        return [*chains.chains(freed, costs, np.array(lowest), numbers, nodes, waiting=waiting, most=most)]

    def _costs(self, request: Request, host: Host) -> Floats:
        """[slot] what of its worth the pod would take; infinite where it does not fit."""
        shape = dataclasses.replace(RequestKey.for_request(request, policy="", host=host), policy=policies.DEFAULT)
        return self._scoring.costs(shape)[1]
