"""Fleet: the nodes of a cluster kept ready for placement; a decision takes well under a millisecond at any size.

The node is found over arrays; its GPUs are chosen by `node_by_node.choose`, with the fleet's costs. By itself that says
the same: a pod fits here if and only if it fits there, and a refusal is the same sentence. What differs is which of the
GPUs that will do is best: the policy `fragmentation` takes the place where the worth of the cluster's free capacity to
the typical mix falls least (`worth`, `pricing`). Not for threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpushare import policies
from gpushare.gpu import Gpu
from gpushare.ledger import GpuUse
from gpushare.mix import NO_HOST, Host, Mix
from gpushare.placement import gpu_selection, grid, node_by_node, refusing, topology
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import Floats, Grid, Room
from gpushare.placement.node_by_node import Placement, Price, fits_anywhere
from gpushare.placement.pricing import Prices
from gpushare.placement.request_key import RequestKey
from gpushare.placement.scoring import Scoring
from gpushare.placement.vacancies import Vacancies
from gpushare.placement.view import NodeView
from gpushare.placement.worth import Loss, Worth
from gpushare.refusal import Refusal, Rejected
from gpushare.request import Request

_SAME = 1e-12
_UNFIT_IN_A_ROW = 16  # then all are put in order at once


class Fleet:
    """All nodes, kept up to date by `update` and `remove`; `place` answers."""

    def __init__(self) -> None:
        self._grid = Grid()
        self._views: dict[str, NodeView] = {}
        self._scoring = Scoring(self._grid, Mix())

    def __len__(self) -> int:
        return len(self._views)

    def views(self) -> Iterator[NodeView]:
        """Every node with GPUs."""
        return iter(self._views.values())

    def exclusive_views(self) -> list[NodeView]:
        """Return the nodes where a pod with an exclusion label holds a GPU."""
        exclusive = self._grid.holders.are_exclusive()[self._grid.now().holders].any(0)
        return [self._views[self._grid.names[slot]] for slot in np.flatnonzero(exclusive)]

    def update(self, view: NodeView, *, room: Room | None = None) -> None:
        """A node as it is now. room: None keeps what is known of its CPU and memory, at first that nothing is known."""
        name = view.node.name
        if not view.node.gpus:
            self.remove(name)
            return
        self._grid.put(view, room or self._grid.room(name))
        self._views[name] = view

    def remove(self, name: str) -> None:
        """A node is gone; nothing happens if there was none."""
        if self._views.pop(name, None) is not None:
            self._grid.drop(name)

    @property
    def mix(self) -> Mix:
        """The one that was learned last."""
        return self._scoring.mix

    def study(self, mix: Mix) -> Worth:
        """What `learn` needs of a mix: takes some tens of milliseconds, and may be done in another thread."""
        return self._scoring.study(mix)

    def learn(self, mix: Mix, worth: Worth | None = None) -> None:
        """Price by this mix from now on. Do it now and then, not with every pod: everything is scored again."""
        self._scoring.learn(mix, worth or self.study(mix))

    def place(
        self,
        request: Request,
        *,
        host: Host = NO_HOST,
        policy: str = policies.DEFAULT,
        unfit: Callable[[str], str | None] = fits_anywhere,
        fits: Callable[[str], bool] | None = None,
    ) -> Placement | Refusal:
        """As `node_by_node.place`: the best placement, or a refusal with the nearest miss of each rule.

        host: CPU and memory that the pod asks of its node. unfit: why a node cannot take the pod, or None. fits:
        whether that is None, where it can be told for less.
        """
        fits = fits or (lambda node: unfit(node) is None)
        shape = RequestKey.for_request(request, policy=policy, host=host)
        needs, total = self._scoring.costs(shape)
        slot = self._best(total, unfit)
        missed = self._scoring.missed(shape)
        if slot is None:
            worth = self._scoring.worth
            return refusing.refuse(request, shape, needs, worth, self._grid, self._views, unfit, fits, missed)
        view = self._views[self._grid.names[slot]]
        rejected: list[Rejected] = []
        price = self._price(shape, needs, view)
        chosen = node_by_node.choose(view, request, policy=policy, price=price, rejected=rejected)
        if chosen is None:
            raise AssertionError(f"{view.node.name} was chosen and cannot take the pod: {rejected[0]}")
        return Placement(view.node.name, chosen[1])

    def prices(self) -> Prices:
        """What is scarce now, for `value`."""
        return self._scoring.prices

    def values(self, names: Sequence[str], prices: Prices) -> Floats:
        """[name] what is free on each of these nodes with GPUs is worth to the mix at these prices, in GPUs."""
        return self._scoring.values(np.array([self._grid.slots[name] for name in names], np.int64), prices)

    def vacancies(self, prices: Prices) -> Vacancies:
        """None yet, to be appraised by this fleet's mix at these prices."""
        return Vacancies(self._scoring.mix, self._scoring.worth, self._grid.kinds, prices)

    def lowest(self, request: Request, *, host: Host = NO_HOST) -> float:
        """What a pod costs where it costs least by the policy `fragmentation`, in GPUs; infinite if it fits nowhere."""
        shape = dataclasses.replace(RequestKey.for_request(request, policy="", host=host), policy=policies.DEFAULT)
        total = self._scoring.costs(shape)[1]
        return float(total.min(initial=np.inf))

    def place_on(
        self,
        view: NodeView,
        request: Request,
        *,
        policy: str = policies.DEFAULT,
        unfit: Callable[[str], str | None] = fits_anywhere,
    ) -> Placement | Refusal:
        """The choice of GPUs on one node as it is given here, whatever the fleet knows of it; nothing is kept.

        CPU and memory of the node are for `unfit` to judge.
        """
        for gpu in view.node.gpus:
            self._grid.kind_of(gpu)
        shape = RequestKey.for_request(request, policy=policy)
        price = self._price(shape, self._scoring.needs(shape), view)
        return node_by_node.place([view], request, policy=policy, unfit=unfit, price=price)

    def _price(self, shape: RequestKey, needs: tuple[Needs, ...], view: NodeView) -> Price | None:
        """What a GPU of this node costs a pod of this shape, if not by the policy: several parts go by that."""
        if len(needs) != 1 or shape.policy != policies.DEFAULT:
            return None
        loss = Loss(self._scoring.worth, needs[0])
        gpus = topology.in_order(view.node.gpus)
        unused = grid.unused_linked(topology.layout(gpus), [view.used[gpu.uuid] for gpu in gpus])
        unused_of = {gpu.uuid: count for gpu, count in zip(gpus, unused, strict=True)}

        def price(gpu: Gpu, used: GpuUse) -> float:
            compute_percent, memory_percent = grid.free_percent(gpu, used)
            lost = loss.of(self._grid.kind_of(gpu), compute_percent, memory_percent)
            lost += gpu_selection.TIGHTER * min(compute_percent, memory_percent)
            return lost + gpu_selection.LINKED * unused_of[gpu.uuid]

        return price

    def _best(self, total: Floats, unfit: Callable[[str], str | None]) -> int | None:
        """The cheapest slot that is fit; of equals, the first by name."""
        names, ranks = self._grid.names, self._grid.ranks()
        for _ in range(_UNFIT_IN_A_ROW):
            lowest = total.min(initial=np.inf)
            if lowest == np.inf:
                return None
            equal = np.flatnonzero(total <= lowest + _SAME)
            slot = int(equal[ranks[equal].argmin()])
            if unfit(names[slot]) is None:
                return slot
            total = total.copy()
            total[slot] = np.inf
        for slot in np.lexsort((ranks, total)).tolist():
            if total[slot] == np.inf:
                return None
            if unfit(names[slot]) is None:
                return int(slot)
        return None
