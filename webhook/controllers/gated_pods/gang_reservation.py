"""GangReservation: the shares of a gang, tried on a draft of the ledger, written, and settled, all of them or none."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import logging
import types
from collections.abc import Collection, Iterable, Mapping, Sequence

from gpushare import errors, ledger
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.controllers.gated_pods import gang_nodes
from webhook.controllers.gated_pods.existing_allocations import Gone
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import draft, ledger_store
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

Asks = Sequence[tuple[Pod, Request]]
PreferredNodes = Mapping[str, str]  # uid of a pod -> node
_NOWHERE: PreferredNodes = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class GangReservation:
    """`gone`: allocations that the gang may take the place of."""

    store: ledger_store.LedgerStore
    reservation: Reservation

    async def preferred(self, asks: Asks, gone: Gone, beside: Collection[str]) -> PreferredNodes:
        """The node for each, by uid, so that they are near each other, and the rest of them on the nodes `beside`."""
        under: ledger_store.LedgerStore = draft.Without(self.store, gone) if gone else self.store
        return await gang_nodes.preferred(under, asks, policy=self.reservation.policy, beside=beside)

    async def lacks(self, asks: Asks, gone: Gone, preferred: PreferredNodes = _NOWHERE) -> tuple[Pod, Refusal] | None:
        """Try them all on a draft of the ledger; return one that does not fit, and why, or None."""
        under: ledger_store.LedgerStore = draft.Without(self.store, gone) if gone else self.store
        tried = draft.Draft(under)
        rules = self.reservation.on(tried)
        try:
            for pod, request in asks:
                outcome = await rules.reserve(pod.manifest, request, pod.ref, preferred=preferred.get(pod.ref.uid, ""))
                if isinstance(outcome, Refusal):
                    return pod, outcome
        finally:
            tried.end()
        return None

    async def reserve(
        self, asks: Asks, gone: Gone, preferred: PreferredNodes = _NOWHERE
    ) -> dict[str, mutation.Placed | Refusal]:
        """Write a tentative share for each; return by uid what it got, or why it got none."""
        rules = (self.reservation.on(draft.Without(self.store, gone)) if gone else self.reservation).tentative()
        tasks: dict[str, asyncio.Task[mutation.Placed | Refusal]] = {}
        async with asyncio.TaskGroup() as group:
            for pod, request in asks:
                node = preferred.get(pod.ref.uid, "")
                share = rules.reserve(pod.manifest, request, pod.ref, preferred=node)
                tasks[pod.ref.uid] = group.create_task(share)
                await asyncio.sleep(0)
        return {uid: task.result() for uid, task in tasks.items()}

    async def settle(self, shares: Iterable[mutation.Placed]) -> bool:
        """Make tentative shares theirs for good; return whether all of them are now."""
        by_node: dict[str, list[str]] = collections.defaultdict(list)
        for share in shares:
            by_node[share.node].append(share.allocation_id)
        writes = [
            self.store.commit(name, functools.partial(ledger.settle, ids=tuple(ids))) for name, ids in by_node.items()
        ]
        failed = [
            error for error in await asyncio.gather(*writes, return_exceptions=True) if isinstance(error, BaseException)
        ]
        for error in failed:
            if not isinstance(error, ledger_store.UnreachableError | errors.LedgerError):
                raise error
            logger.warning("Could not settle the shares of a gang", extra={"err": str(error)})
        return not failed
