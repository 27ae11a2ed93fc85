"""Fleet: the nodes of a cluster kept ready for placement; a decision takes well under a millisecond at any size.

It says what the reference (`choice.place`) says: a pod fits here if and only if it fits there, and a refusal is the
same sentence. What differs is which of the GPUs that will do is best: the policy `fragmentation` takes the place where
the worth of the cluster's free capacity to the typical mix falls least (`worth`, `pricing`).

Costs are kept by shape of pod; a decision works out again only those of nodes that have changed since. Not for threads.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from gpushare.mix import NO_HOST, Host, Mix
from gpushare.placement import choice, eligibility, policies, pricing, refusing, selection
from gpushare.placement.choice import Placement
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import Floats, Grid, Ints, Room
from gpushare.placement.shape import Shape, in_order
from gpushare.placement.view import NodeView
from gpushare.placement.worth import Worth
from gpushare.refusal import Refusal
from gpushare.request import Request

_GRAIN = 0.02  # GPUs: smaller differences of worth are noise, and the fuller node is the better choice
_FULLER = 1e-4
_REPRICED_AFTER = 10  # changes of nodes, or one in a hundred nodes if that is more
_SHAPES = 512
_SAME = 1e-12
_UNFIT_IN_A_ROW = 16


@dataclasses.dataclass(slots=True)
class _Costs:
    """Of one shape on each slot: infinite where it does not fit; true of the grid as it was at `clock`."""

    needs: tuple[Needs, ...]
    size: Floats  # [kind] GPUs
    each: Floats  # [n]
    clock: int = -1
    epoch: int = -1


@dataclasses.dataclass(slots=True)
class _Before:
    """What every node is worth as it is: the same for all shapes."""

    gpus: Floats  # [n] worth of the GPUs alone
    total: Floats  # [n] what of it CPU and memory can feed, and the price of whole sets
    free: Floats  # [n] GPUs
    clock: int = -1
    epoch: int = -1


class Fleet:
    """All nodes, kept up to date by `update` and `remove`; `place` answers."""

    def __init__(self, mix: Mix | None = None) -> None:
        self._grid = Grid()
        self._views: dict[str, NodeView] = {}
        self._mix = mix or Mix()
        self._worth = Worth(self._mix, self._grid.kinds)
        self._prices = pricing.free(self._worth)
        self._priced_at = 0
        self._epoch = 0  # counts what makes all costs void
        self._before = _Before(np.zeros(0), np.zeros(0), np.zeros(0))
        self._costs: collections.OrderedDict[Shape, _Costs] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._views)

    def views(self) -> Iterator[NodeView]:
        """Every node with GPUs."""
        return iter(self._views.values())

    def update(self, view: NodeView, *, room: Room | None = None) -> None:
        """A node as it is now. room: None keeps what is known of its CPU and memory, at first that nothing is known."""
        name = view.node.name
        if not view.node.gpus:
            self.remove(name)
            return
        self._grid.put(view, room or self._grid.room(name))
        self._views[name] = view

    def update_room(self, name: str, room: Room) -> None:
        """What is free of a node's CPU and memory now; nothing happens if there is no such node."""
        if name in self._views:
            self._grid.put_room(name, room)

    def remove(self, name: str) -> None:
        """A node is gone; nothing happens if there was none."""
        if self._views.pop(name, None) is not None:
            self._grid.drop(name)

    def learn(self, mix: Mix) -> None:
        """Price by this mix from now on. Takes some tens of milliseconds: do it now and then, not with every pod."""
        self._mix = mix
        self._rebuild()

    def place(
        self,
        request: Request,
        *,
        host: Host = NO_HOST,
        policy: str = policies.DEFAULT,
        unfit: Callable[[str], str | None] = choice.fits_anywhere,
    ) -> Placement | Refusal:
        """As `choice.place`: the best placement, or a refusal with the nearest miss of each rule.

        host: CPU and memory that the pod asks of its node. unfit: why a node cannot take the pod, or None.
        """
        shape = Shape.of(request, policy=policy, host=host)
        self._refresh(shape.policy)
        costs = self._costs_of(shape)
        total = costs.each[: self._grid.width]
        if shape.policy == policies.DEFAULT:
            total = total + (self._prices.kinds * costs.size)[self._grid.now().node_kind]
        slot = self._best(total, unfit)
        if slot is None:
            return refusing.refuse(request, shape, costs.needs, self._worth, self._grid, self._views, unfit)
        return self._placement(request, shape, costs.needs, self._grid, slot)

    def place_on(
        self,
        view: NodeView,
        request: Request,
        *,
        room: Room | None = None,
        host: Host = NO_HOST,
        policy: str = policies.DEFAULT,
    ) -> Placement | Refusal:
        """The choice on one node as given here, whatever the fleet knows of it; nothing is kept."""
        alone = self._grid.alone(view, room or Room())
        shape = Shape.of(request, policy=policy, host=host)
        self._refresh(shape.policy)
        needs = self._needs(shape)
        if view.node.gpus and len(selection.select(shape, needs, self._worth, alone).slots):
            return self._placement(request, shape, needs, alone, 0)
        views = {view.node.name: view} if view.node.gpus else {}
        return refusing.refuse(request, shape, needs, self._worth, alone, views, choice.fits_anywhere)

    def _placement(self, request: Request, shape: Shape, needs: tuple[Needs, ...], grid: Grid, slot: int) -> Placement:
        found = selection.select(shape, needs, self._worth, grid, np.array([slot]))
        cards = grid.cards(slot)
        shares = [
            share
            for demand, chosen in zip(in_order(request), found.chosen, strict=True)
            for share in choice.given(demand, [cards[row] for row in np.flatnonzero(chosen[:, 0])])
        ]
        return Placement(grid.names[slot], tuple(shares))

    def _best(self, total: Floats, unfit: Callable[[str], str | None]) -> int | None:
        """The cheapest slot that is fit; of equals, the first by name."""
        ranks = self._grid.ranks()
        for _ in range(_UNFIT_IN_A_ROW):
            lowest = total.min(initial=np.inf)
            if lowest == np.inf:
                return None
            equal = np.flatnonzero(total <= lowest + _SAME)
            slot = int(equal[ranks[equal].argmin()])
            if unfit(self._grid.names[slot]) is None:
                return slot
            total = total.copy()
            total[slot] = np.inf
        for slot in np.lexsort((ranks, total)).tolist():
            if total[slot] == np.inf:
                return None
            if unfit(self._grid.names[slot]) is None:
                return int(slot)
        return None

    def _costs_of(self, shape: Shape) -> _Costs:
        costs = self._costs.get(shape)
        if costs is None:
            needs = self._needs(shape)
            costs = self._costs[shape] = _Costs(needs, self._size(needs), np.zeros(0))
            if len(self._costs) > _SHAPES:
                self._costs.popitem(last=False)
        else:
            self._costs.move_to_end(shape)
        grid = self._grid
        if len(costs.needs) and len(costs.size) != len(grid.kinds):
            costs.needs, costs.epoch = self._needs(shape), -1
            costs.size = self._size(costs.needs)
        slots = self._stale(costs.clock, costs.epoch, len(costs.each))
        if slots is None:
            costs.each = np.full(grid.columns.kind.shape[1], np.inf)
        elif len(slots):
            costs.each[slots] = np.inf
        if slots is None or len(slots):
            found = selection.select(shape, costs.needs, self._worth, grid, slots)
            costs.each[found.slots] = self._cost(shape, found)
        costs.clock, costs.epoch = grid.clock, self._epoch
        return costs

    def _cost(self, shape: Shape, found: selection.Selected) -> Floats:
        if shape.policy != policies.DEFAULT:
            return found.cost
        left = dataclasses.replace(
            found.left, cpu=found.left.cpu - shape.host.cpu_milli, host=found.left.host - shape.host.memory_bytes
        )
        after = self._worth.fed(self._before.gpus[found.slots] - found.loss, left)
        after += self._worth.of_sets(left, self._prices.sets)
        lost = self._before.total[found.slots] - after
        cost: Floats = np.floor(lost / _GRAIN + 0.5) * _GRAIN + _FULLER * self._before.free[found.slots]
        return cost

    def _stale(self, clock: int, epoch: int, length: int) -> Ints | None:
        """Slots that have changed since; None if all must be looked at."""
        grid = self._grid
        if epoch != self._epoch or length < grid.columns.kind.shape[1]:
            return None
        slots = np.flatnonzero(grid.changed[: grid.width] > clock)
        return None if len(slots) > grid.width // 2 else slots

    def _refresh(self, policy: str) -> None:
        """Bring worth and prices up to date."""
        if policy != policies.DEFAULT:
            return
        grid = self._grid
        if self._worth.kinds != len(grid.kinds):
            self._rebuild()
        self._look()
        if grid.clock - self._priced_at >= max(_REPRICED_AFTER, len(self._views) // 100):
            self._priced_at = grid.clock
            gpus = self._before.gpus[: grid.width]
            before, self._prices = self._prices, pricing.prices(self._worth, grid.now(), gpus, before=self._prices)
            if not np.array_equal(before.sets, self._prices.sets):
                self._epoch += 1
                self._look()

    def _rebuild(self) -> None:
        self._worth = Worth(self._mix, self._grid.kinds, before=self._worth)
        self._prices = dataclasses.replace(pricing.free(self._worth), kinds=self._prices.kinds)
        self._priced_at = -_REPRICED_AFTER - len(self._views)
        self._epoch += 1

    def _look(self) -> None:
        """Bring `_before` up to date."""
        grid, before = self._grid, self._before
        slots = self._stale(before.clock, before.epoch, len(before.gpus))
        if slots is None:
            length = grid.columns.kind.shape[1]
            before.gpus, before.total, before.free = np.zeros(length), np.zeros(length), np.zeros(length)
            slots = np.arange(grid.width)
        if len(slots):
            columns = grid.columns.at(slots)
            gpus = self._worth.of_cards(columns.compute_percent, columns.memory_percent, columns.kind).sum(0)
            before.gpus[slots] = gpus
            before.total[slots] = self._worth.fed(gpus, columns) + self._worth.of_sets(columns, self._prices.sets)
            before.free[slots] = (columns.compute_percent.sum(0) + columns.memory_percent.sum(0)) / 200
        before.clock, before.epoch = grid.clock, self._epoch

    def _needs(self, shape: Shape) -> tuple[Needs, ...]:
        return tuple(eligibility.needs_of(part, shape.constraints, self._grid.kinds) for part in shape.parts)

    def _size(self, needs: tuple[Needs, ...]) -> Floats:
        size = np.zeros(len(self._grid.kinds))
        for part in needs:
            size += part.gpus * np.maximum(part.request_percent, np.minimum(part.memory_percent, 100)) / 100
        return size
