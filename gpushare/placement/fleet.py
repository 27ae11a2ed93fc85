"""Fleet: the nodes of a cluster kept ready for placement; a decision takes well under a millisecond at any size.

It says what the reference (`choice.place`) says: a pod fits here if and only if it fits there, and a refusal is the
same sentence. What differs is which of the GPUs that will do is best: the policy `fragmentation` takes the place where
the worth of the cluster's free capacity to the typical mix falls least (`worth`, `pricing`). Not for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gpushare.mix import NO_HOST, Host, Mix
from gpushare.placement import choice, policies, refusing, selection
from gpushare.placement.choice import Placement
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import Floats, Grid, Room
from gpushare.placement.scoring import Scoring
from gpushare.placement.shape import Shape, in_order
from gpushare.placement.view import NodeView
from gpushare.refusal import Refusal
from gpushare.request import Request

_SAME = 1e-12
_UNFIT_IN_A_ROW = 16  # then all are put in order at once


class Fleet:
    """All nodes, kept up to date by `update` and `remove`; `place` answers."""

    def __init__(self, mix: Mix | None = None) -> None:
        self._grid = Grid()
        self._views: dict[str, NodeView] = {}
        self._scoring = Scoring(self._grid, mix or Mix())

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
        self._scoring.learn(mix)

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
        needs, total = self._scoring.costs(shape)
        slot = self._best(total, unfit)
        if slot is None:
            worth = self._scoring.worth
            return refusing.refuse(request, shape, needs, worth, self._grid, self._views, unfit)
        return self._placement(request, shape, needs, self._grid, slot)

    def place_on(
        self,
        view: NodeView,
        request: Request,
        *,
        room: Room | None = None,
        host: Host = NO_HOST,
        policy: str = policies.DEFAULT,
    ) -> Placement | Refusal:
        """The choice of GPUs on one node as it is given here, whatever the fleet knows of it; nothing is kept."""
        shape = Shape.of(request, policy=policy, host=host)
        alone = self._grid.alone(view, room or Room())
        needs = self._scoring.needs(shape)
        if view.node.gpus and len(selection.select(shape, needs, self._scoring.worth, alone, None).slots):
            return self._placement(request, shape, needs, alone, 0)
        views = {view.node.name: view} if view.node.gpus else {}
        worth = self._scoring.worth
        return refusing.refuse(request, shape, needs, worth, alone, views, choice.fits_anywhere)

    def _placement(self, request: Request, shape: Shape, needs: tuple[Needs, ...], grid: Grid, slot: int) -> Placement:
        found = selection.select(shape, needs, self._scoring.worth, grid, np.array([slot]))
        cards = grid.cards(slot)
        shares = [
            share
            for demand, rows in zip(in_order(request), found.rows, strict=True)
            for share in choice.given(demand, [cards[row] for row in rows[:, 0].tolist()])
        ]
        return Placement(grid.names[slot], tuple(shares))

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
