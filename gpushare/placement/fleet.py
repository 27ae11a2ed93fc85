"""Fleet: all nodes of a cluster, indexed for placement; a decision takes well under a millisecond at any size.

The node is found over arrays; `node_by_node.choose` picks its GPUs, with the fleet's costs. `node_by_node` alone gives
the same result: the same pods fit, and refusals have the same sentence. Only the ranking of GPUs that fit differs: for
the policy `fragmentation` the fleet picks the place where the cluster's free capacity loses the least worth to the
typical mix (`worth`, `pricing`). Not thread-safe.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpushare import policies
from gpushare.allocation import Isolation
from gpushare.gpunode import Gpu
from gpushare.ledger import GpuUse
from gpushare.mix import NO_HOST, Host, Mix
from gpushare.placement import gpu_selection, grid, node_by_node, refusing, topology
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import Bools, Floats, Grid, Room
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
_UNFIT_IN_A_ROW = 16  # after so many unfit nodes, sort the rest once


class Fleet:
    """All nodes; `update` and `remove` keep them current."""

    def __init__(self) -> None:
        self._grid = Grid()
        self._views: dict[str, NodeView] = {}
        self._scoring = Scoring(self._grid)

    def __len__(self) -> int:
        return len(self._views)

    def views(self) -> Iterator[NodeView]:
        """Iterate over the nodes with GPUs."""
        return iter(self._views.values())

    def exclusive_views(self) -> list[NodeView]:
        """Return the nodes where a pod with an exclusion label holds a GPU."""
        exclusive = self._grid.holders.are_exclusive()[self._grid.now().holders].any(0)
        return [self._views[self._grid.names[slot]] for slot in np.flatnonzero(exclusive)]

    def offers(self, kind: Isolation) -> bool:
        """Whether any GPU of these nodes takes shares with this kind of isolation."""
        counted = zip(self._grid.kinds, self._grid.node_gpus, strict=True)
        return any(gpu is not None and gpus > 0 and kind in gpu.isolations for gpu, gpus in counted)

    def update(self, view: NodeView, *, room: Room | None = None, row: int = -1) -> None:
        """Add or replace a node. room: None keeps the known one, or else no limit. row: its bit in `misfits`, or -1."""
        name = view.node.name
        if not view.node.gpus:
            self.remove(name)
            return
        slot = self._grid.put(view, room or self._grid.room(name))
        self._grid.rows[slot] = row
        self._views[name] = view

    def remove(self, name: str) -> None:
        """Remove a node, if it exists."""
        if self._views.pop(name, None) is not None:
            self._grid.drop(name)

    @property
    def mix(self) -> Mix:
        """The mix that was learned last."""
        return self._scoring.mix

    def study(self, mix: Mix) -> Worth:
        """Compute the tables of a mix for `learn`. Takes about a tenth of a second and may run in another thread."""
        return self._scoring.study(mix)

    def learn(self, mix: Mix, worth: Worth | None = None) -> None:
        """Price by this mix from now on. All cached costs are dropped, so do it only now and then."""
        self._scoring.learn(worth or self.study(mix))

    def place(
        self,
        request: Request,
        *,
        host: Host = NO_HOST,
        policy: str = policies.DEFAULT,
        unfit: Callable[[str], str | None] = fits_anywhere,
        misfits: Callable[[], int] | None = None,
        is_deprioritized: Callable[[str], bool] | None = None,
    ) -> Placement | Refusal:
        """Return the best placement, or a refusal with the nearest miss of each rule; see `node_by_node.place`.

        host: the pod's CPU and memory requests. unfit: returns why a node cannot take the pod, or None. misfits:
        returns the bits of the nodes for which that is not None, if there is a faster way. is_deprioritized: whether a
        node is used only if no other fits.
        """
        is_misfit = functools.cache(lambda: refusing.misfits(self._grid, unfit, misfits))
        shape = RequestKey.for_request(request, policy=policy, host=host)
        needs, total = self._scoring.costs(shape)
        slot = None
        if is_deprioritized is not None:
            slot = self._best(total, lambda name: not is_deprioritized(name) and unfit(name) is None, is_misfit)
        if slot is None:
            slot = self._best(total, lambda name: unfit(name) is None, is_misfit)
        if slot is None:
            worth = self._scoring.worth
            return refusing.refuse(request, shape, needs, worth, self._grid, self._views, unfit, is_misfit())
        view = self._views[self._grid.names[slot]]
        rejected: list[Rejected] = []
        price = self._price(shape, needs, view)
        chosen = node_by_node.choose(view, request, policy=policy, price=price, rejected=rejected)
        if chosen is None:
            raise AssertionError(f"{view.node.name} was chosen and cannot take the pod: {rejected[0]}")
        return Placement(view.node.name, chosen[1], request.constraints.isolation)

    def prices(self) -> Prices:
        """Return the current prices, for `values`."""
        return self._scoring.prices

    def values(self, names: Sequence[str], prices: Prices) -> Floats:
        """Return [name] the worth of each node's free capacity to the mix at these prices, in GPUs."""
        return self._scoring.values(np.array([self._grid.slots[name] for name in names], np.int64), prices)

    def vacancies(self, prices: Prices) -> Vacancies:
        """Return empty vacancies, valued by this fleet's mix at these prices."""
        return Vacancies(self._scoring.worth, self._grid.kinds, prices)

    def lowest(self, request: Request, *, host: Host = NO_HOST) -> float:
        """Return the lowest cost of a pod by the policy `fragmentation`, in GPUs; infinite if it fits nowhere."""
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
        """Choose GPUs on the given node, regardless of the fleet's own copy of it; nothing is stored.

        `unfit` must check the node's CPU and memory.
        """
        for gpu in view.node.gpus:
            self._grid.kind_of(gpu)
        shape = RequestKey.for_request(request, policy=policy)
        price = self._price(shape, self._scoring.needs(shape), view)
        return node_by_node.place([view], request, policy=policy, unfit=unfit, price=price)

    def _price(self, shape: RequestKey, needs: tuple[Needs, ...], view: NodeView) -> Price | None:
        """Return the cost function of a GPU on this node; None if the policy's own costs apply, as for several
        parts.
        """
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
            if shape.constraints.isolation is Isolation.MIG and not used.holders:
                lost += gpu_selection.CUT
            return lost + gpu_selection.LINKED * unused_of[gpu.uuid]

        return price

    def _best(self, total: Floats, is_fit: Callable[[str], bool], is_misfit: Callable[[], Bools]) -> int | None:
        """Return the cheapest slot whose node is fit; ties go to the first name."""
        names, ranks = self._grid.names, self._grid.ranks()
        for _ in range(_UNFIT_IN_A_ROW):
            lowest = total.min(initial=np.inf)
            if lowest == np.inf:
                return None
            equal = np.flatnonzero(total <= lowest + _SAME)
            slot = int(equal[ranks[equal].argmin()])
            if is_fit(names[slot]):
                return slot
            total = total.copy()
            total[slot] = np.inf
        total[is_misfit()] = np.inf
        for slot in np.lexsort((ranks, total)).tolist():
            if total[slot] == np.inf:
                return None
            if is_fit(names[slot]):
                return int(slot)
        return None
