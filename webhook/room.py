"""Room for pods that fit nowhere: a borrowed GPU first, then the place of others, then a new node.

Each step gets only the pods that the one before does nothing for, so no pod is evicted while a GPU is lent. A pod whose
placeholder stays unbound for long goes on to the next step, and one that preempts already borrows nothing.
"""

from __future__ import annotations

import dataclasses

from gpushare.refusal import Refusal
from webhook.controllers.borrow.borrow_controller import BorrowController
from webhook.controllers.demand.demand_controller import DemandController
from webhook.controllers.preemption.preemptor import Preemptor
from webhook.pods.stored_pod import Pod

Refusals = list[tuple[Pod, Refusal]]


@dataclasses.dataclass(frozen=True, slots=True)
class RoomMaker:
    """The steps that are turned on."""

    borrow: BorrowController | None
    preemptor: Preemptor | None
    demand: DemandController | None

    async def reconcile(self, waiting: Refusals) -> Refusals:
        """Make room for the pods that wait; return them, with what is done for each or why nothing is."""
        asked: Refusals = []
        if self.borrow is not None:
            preempting = self.preemptor.nominated_uids() if self.preemptor is not None else frozenset[str]()
            continued, others = _split(waiting, preempting)
            asked, others = await self.borrow.reconcile(others)
            waiting = [*continued, *others]
        if self.preemptor is not None:
            waiting = await self.preemptor.reconcile(waiting)
        if self.demand is not None:
            waiting = await self.demand.reconcile(waiting)
        return [*asked, *waiting]


def _split(waiting: Refusals, uids: frozenset[str]) -> tuple[Refusals, Refusals]:
    """Return the pods with these UIDs, and the others."""
    return [entry for entry in waiting if entry[0].ref.uid in uids], [
        entry for entry in waiting if entry[0].ref.uid not in uids
    ]
