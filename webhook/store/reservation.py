"""Reservation: place on our own view, then write the allocation into that GPUNode, until both agree.

What the view says may be out of date: other replicas place at the same time. So the change that is written chooses
again, by the same prices, on that node as it is at the moment of the write; unless the GPUs that were chosen are as
they were then.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from gpushare import errors, ledger
from gpushare.allocation import GivenShare, PodRef
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement
from gpushare.pod import PodJson
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from webhook.pods import mutation
from webhook.store import ledger_store
from webhook.store.chooser import NOWHERE

logger = logging.getLogger(__name__)


LIFETIME_SECONDS: Final = 60.0
ATTEMPTS: Final = 16
MAX_REFUSED: Final = 3  # nodes whose write the API server refuses: it is on account of the pod, then
REFUSED_SECONDS: Final = 60.0  # that such a pod is not tried again


@dataclasses.dataclass(slots=True)
class Waited:
    """How long one pod has waited for the ledger to be written."""

    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Reservation:
    """Gives shares, on the ledger in `store`.

    policy: how to choose when the pod names no policy.
    lifetime_seconds: how long a share waits for its pod to be stored.
    deadline_seconds: the longest that `reserve` takes; well under the webhook's timeout.
    wall_clock: for what people read in a reservation; nothing is judged by it.
    on_conflict: called when a chosen node turned out to be taken.
    is_for_good: whether the share of a pod whose uid is known is its own from the moment it is written.
    unstorable: by uid of the pod until when by `clock` the API server need not be asked again, and why.
    """

    store: ledger_store.LedgerStore
    _: dataclasses.KW_ONLY
    policy: str
    lifetime_seconds: float = LIFETIME_SECONDS
    deadline_seconds: float = 5.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    on_conflict: Callable[[], None] = lambda: None
    is_for_good: bool = True
    giving_back: set[asyncio.Task[None]] = dataclasses.field(default_factory=set)
    unstorable: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)

    def on(self, store: ledger_store.LedgerStore) -> Reservation:
        """The same rules on another ledger."""
        return dataclasses.replace(self, store=store)

    def tentative(self) -> Reservation:
        """The same rules for shares that may be taken back although their pods are known, until `ledger.settle`."""
        return dataclasses.replace(self, is_for_good=False)

    def plan(self, manifest: PodJson, request: Request) -> mutation.Placed | Refusal:
        """Where the pod would go now; nothing is written."""
        outcome = self._place(manifest, request)
        if isinstance(outcome, Refusal):
            return outcome
        return mutation.Placed(new_id(), outcome.node, self.store.chooser.hostname(outcome.node), outcome.shares)

    async def reserve(
        self, manifest: PodJson, request: Request, holder: PodRef, waited: Waited | None = None, *, preferred: str = ""
    ) -> mutation.Placed | Refusal:
        """A share for the pod, written; or why there is none. preferred: the node where it is best, if it fits there.

        A holder whose uid is known holds it for good; otherwise it lapses unless confirmed. What the writing took is
        added to `waited`.
        """
        try:
            async with asyncio.timeout(self.deadline_seconds):
                return await self._reserve(manifest, request, holder, waited or Waited(), preferred)
        except (ledger_store.UnreachableError, TimeoutError) as error:
            # If it was written after all, it is given back, or lapses: nobody knows its id.
            why = str(error) or f"no answer in {self.deadline_seconds:g} s"
            logger.warning(
                "Could not write the ledger",
                extra={"pod": {"namespace": holder.namespace, "name": holder.name}, "err": why},
            )
            said = f"the ledger of GPUs could not be written ({why}): the pod is placed once it can be"
            return Refusal(said, cause=Cause.LEDGER)

    async def _reserve(
        self, manifest: PodJson, request: Request, holder: PodRef, waited: Waited, preferred: str
    ) -> mutation.Placed | Refusal:
        until, why = self.unstorable.get(holder.uid, (0.0, ""))
        if self.clock() < until:
            return Refusal(why, cause=Cause.LEDGER)
        refused: dict[str, str] = {}
        for _ in range(ATTEMPTS):
            at_best = (
                self._on_preferred(manifest, request, preferred) if preferred and preferred not in refused else None
            )
            outcome = at_best or self._place(manifest, request, unless=refused)
            if isinstance(outcome, Refusal):
                return outcome
            identity = new_id()
            change = self._change(manifest, request, holder, identity, outcome)
            self.store.expect(manifest, outcome.node, identity)
            began = time.perf_counter()
            try:
                node = await self.store.commit(outcome.node, change)
            except asyncio.CancelledError:
                if not holder.uid:  # one with a uid is found in the ledger by the placer, which goes on from there
                    self._give_back(outcome.node, identity)
                raise
            except errors.LedgerError:
                self.on_conflict()
                continue
            except ledger_store.WriteRefusedError as error:
                refused[outcome.node] = f"cannot be written ({error})"
                if len(refused) == MAX_REFUSED:
                    return self._unstored(holder, f"the API server does not store its share on any node ({error})")
                continue
            finally:
                waited.seconds += time.perf_counter() - began
            entry = next((entry for entry in node.allocations if entry.id == identity), None)
            if entry is None:
                raise errors.LedgerError(f"{node.name} was written without the allocation {identity}")
            return mutation.Placed(identity, node.name, self.store.chooser.hostname(node.name), entry.shares)
        said = f"lost {ATTEMPTS} write conflicts in a row to other pods: the placer tries again"
        return Refusal(said, cause=Cause.LEDGER)

    def _place(
        self, manifest: PodJson, request: Request, *, unless: Mapping[str, str] = NOWHERE
    ) -> Placement | Refusal:
        store = self.store
        return store.chooser.place(manifest, request, policy=self.policy, instead=store.instead, unless=unless)

    def _on_preferred(self, manifest: PodJson, request: Request, preferred: str) -> Placement | None:
        view = self.store.view(preferred)
        outcome = view and self._place_on(view, manifest, request)
        return outcome if isinstance(outcome, Placement) else None

    def _place_on(self, view: NodeView, manifest: PodJson, request: Request) -> Placement | Refusal:
        store = self.store
        return store.chooser.place_on(view, manifest, request, policy=self.policy, instead=store.instead)

    async def release(self, name: str, identity: str) -> None:
        """Release a reservation that its pod cannot use any more; if that fails it lapses."""
        with contextlib.suppress(ledger_store.UnreachableError, errors.LedgerError, TimeoutError):
            async with asyncio.timeout(self.deadline_seconds / 2):
                await self.store.commit(name, lambda node: _without(node, identity))

    def _give_back(self, name: str, identity: str) -> None:
        """Take back what nobody waits for any more, once it turns out to have been written after all.

        Else it would be kept from others until it lapses, and its namespace be blamed for a pod that never came.
        """
        task = asyncio.create_task(self.release(name, identity), name=f"give back {identity}")
        self.giving_back.add(task)
        task.add_done_callback(self.giving_back.discard)

    def _unstored(self, holder: PodRef, why: str) -> Refusal:
        now = self.clock()
        for uid in [uid for uid, (until, _) in self.unstorable.items() if until <= now]:
            del self.unstorable[uid]
        if holder.uid:
            self.unstorable[holder.uid] = now + REFUSED_SECONDS, why
        return Refusal(why, cause=Cause.LEDGER)

    def _change(
        self, manifest: PodJson, request: Request, holder: PodRef, identity: str, chosen: Placement
    ) -> ledger_store.Change:
        seen = self.store.view(chosen.node)

        def change(node: GpuNode) -> GpuNode:
            if any(entry.id == identity for entry in node.allocations):
                return node  # an earlier attempt was written although its answer was lost
            outcome: Placement | Refusal = chosen
            if seen is None or not _are_as_seen(chosen, node, seen):
                outcome = self._place_on(NodeView.from_node(node), manifest, request)
            if isinstance(outcome, Refusal):
                raise errors.LedgerError(outcome.reason)
            until = None if holder.uid and self.is_for_good else self.wall_clock() + self.lifetime_seconds
            entry = outcome.allocation(request, allocation_id=identity, pod=holder, reserved_until=until)
            return ledger.reserve(node, entry)

        return change


def _without(node: GpuNode, identity: str) -> GpuNode:
    """The node without a reservation; the very same if it has none of that id that nobody has claimed."""
    is_there = any(entry.id == identity and not entry.pod.uid for entry in node.allocations)
    return ledger.release(node, [identity]) if is_there else node


def _are_as_seen(chosen: Placement, node: GpuNode, seen: NodeView) -> bool:
    """Whether the GPUs that were chosen, and who holds what of them, are on the node as they were."""
    if node is seen.node:
        return True
    gpus, before, held = node.gpu_by_uuid(), seen.node.gpu_by_uuid(), ledger.use(node)
    return all(
        uuid in gpus and gpus[uuid] == before.get(uuid) and _holders(held[uuid]) == _holders(seen.used[uuid])
        for share in chosen.shares
        for uuid in share.gpu_uuids
    )


def _holders(held: ledger.GpuUse) -> list[tuple[str, tuple[GivenShare, ...]]]:
    return [(entry.id, entry.shares) for entry in held.holders]


def new_id() -> str:
    """128 random bits in lower-case base 32: nobody guesses one, and it may stand in a label or a metric."""
    return base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
