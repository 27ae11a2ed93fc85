"""Reservation: places a pod on our view, then writes the allocation into that GPUNode, until both agree.

The view may be outdated, because other replicas place pods at the same time. So the change that is written chooses GPUs
again on the node as it is stored then, with the same costs. It skips that if the chosen GPUs have not changed.
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
from webhook.store.chooser import NO_EXCLUSIONS

logger = logging.getLogger(__name__)


LIFETIME_SECONDS: Final = 60.0
ATTEMPTS: Final = 16
MAX_REFUSED: Final = 3  # nodes whose write is rejected, before the pod is the likely cause
REFUSED_SECONDS: Final = 60.0  # before such a pod is tried again


@dataclasses.dataclass(slots=True)
class LedgerWait:
    """How long one pod has waited for writes of the ledger."""

    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Reservation:
    """Gives shares, on the ledger in `store`.

    policy: for pods that name none. lifetime_seconds: how long a reservation waits for its pod. deadline_seconds: the
    longest that `reserve` takes, well under the webhook's timeout. on_conflict: called when a chosen node was taken
    meanwhile. is_permanent: whether the share of a pod with a known UID is permanent once written. unwritable: pods
    whose share no node accepts, by UID: until when, by `clock`, they are refused, and why.
    """

    store: ledger_store.LedgerStore
    _: dataclasses.KW_ONLY
    policy: str
    lifetime_seconds: float = LIFETIME_SECONDS
    deadline_seconds: float = 5.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    on_conflict: Callable[[], None] = lambda: None
    is_permanent: bool = True
    releasing: set[asyncio.Task[None]] = dataclasses.field(default_factory=set)
    unwritable: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)

    def on(self, store: ledger_store.LedgerStore) -> Reservation:
        return dataclasses.replace(self, store=store)

    def tentative(self) -> Reservation:
        """Return rules for shares that may be released until `ledger.settle`, although their pods are known."""
        return dataclasses.replace(self, is_permanent=False)

    def plan(self, manifest: PodJson, request: Request) -> mutation.Placed | Refusal:
        outcome = self._place(manifest, request)
        if isinstance(outcome, Refusal):
            return outcome
        hostname = self.store.chooser.hostname(outcome.node)
        return mutation.Placed(new_id(), outcome.node, hostname, outcome.shares, outcome.isolation)

    async def reserve(
        self,
        manifest: PodJson,
        request: Request,
        holder: PodRef,
        waited: LedgerWait | None = None,
        *,
        preferred: str = "",
    ) -> mutation.Placed | Refusal:
        """Place the pod, on the node `preferred` if it fits there, and write its share; return why there is none.

        The share expires unless it is confirmed or the holder's UID is known. `waited` gets the time of writes.
        """
        try:
            async with asyncio.timeout(self.deadline_seconds):
                return await self._reserve(manifest, request, holder, waited or LedgerWait(), preferred)
        except (ledger_store.UnreachableError, TimeoutError) as error:
            # If it was written after all, it is released or expires, because no pod knows its ID.
            why = str(error) or f"no answer in {self.deadline_seconds:g} s"
            logger.warning(
                "Could not write the ledger",
                extra={"pod": {"namespace": holder.namespace, "name": holder.name}, "err": why},
            )
            sentence = f"the ledger of GPUs could not be written ({why}): the placer retries"
            return Refusal(sentence, cause=Cause.LEDGER)

    async def _reserve(
        self, manifest: PodJson, request: Request, holder: PodRef, waited: LedgerWait, preferred: str
    ) -> mutation.Placed | Refusal:
        until, why = self.unwritable.get(holder.uid, (0.0, ""))
        if self.clock() < until:
            return Refusal(why, cause=Cause.LEDGER)
        refused: dict[str, str] = {}
        for _ in range(ATTEMPTS):
            at_preferred = (
                self._on_preferred(manifest, request, preferred) if preferred and preferred not in refused else None
            )
            outcome = at_preferred or self._place(manifest, request, excluded=refused)
            if isinstance(outcome, Refusal):
                return outcome
            identity = new_id()
            change = self._change(manifest, request, holder, identity, outcome)
            self.store.assume(manifest, request, outcome.node, identity)
            began = time.perf_counter()
            try:
                node = await self.store.commit(outcome.node, change)
            except asyncio.CancelledError:
                if not holder.uid:  # the placer finds shares with a UID in the ledger, and continues from there
                    self._release_later(outcome.node, identity)
                raise
            except errors.LedgerError:
                self.on_conflict()
                continue
            except ledger_store.WriteRefusedError as error:
                refused[outcome.node] = f"cannot be written ({error})"
                if len(refused) < MAX_REFUSED:
                    continue
                why, now = f"the API server rejects its share on every node ({error})", self.clock()
                for uid in [uid for uid, (until, _) in self.unwritable.items() if until <= now]:
                    del self.unwritable[uid]
                if holder.uid:
                    self.unwritable[holder.uid] = now + REFUSED_SECONDS, why
                return Refusal(why, cause=Cause.LEDGER)
            finally:
                waited.seconds += time.perf_counter() - began
            entry = next((entry for entry in node.allocations if entry.id == identity), None)
            if entry is None:
                raise errors.LedgerError(f"{node.name} was written without the allocation {identity}")
            hostname = self.store.chooser.hostname(node.name)
            return mutation.Placed(identity, node.name, hostname, entry.shares, entry.labels.isolation)
        sentence = f"lost {ATTEMPTS} write conflicts in a row to other pods: the placer retries"
        return Refusal(sentence, cause=Cause.LEDGER)

    def _place(
        self, manifest: PodJson, request: Request, *, excluded: Mapping[str, str] = NO_EXCLUSIONS
    ) -> Placement | Refusal:
        store = self.store
        return store.chooser.place(manifest, request, policy=self.policy, overrides=store.overrides, excluded=excluded)

    def _on_preferred(self, manifest: PodJson, request: Request, preferred: str) -> Placement | None:
        view = self.store.view(preferred)
        outcome = view and self._place_on(view, manifest, request)
        return outcome if isinstance(outcome, Placement) else None

    def _place_on(self, view: NodeView, manifest: PodJson, request: Request) -> Placement | Refusal:
        store = self.store
        return store.chooser.place_on(view, manifest, request, policy=self.policy, overrides=store.overrides)

    async def release(self, name: str, identity: str) -> None:
        """Release a reservation that its pod cannot use; if that fails, it expires."""

        def change(node: GpuNode) -> GpuNode:
            is_there = any(entry.id == identity and not entry.pod.uid for entry in node.allocations)
            return ledger.release(node, [identity]) if is_there else node

        with contextlib.suppress(ledger_store.UnreachableError, errors.LedgerError, TimeoutError):
            async with asyncio.timeout(self.deadline_seconds / 2):
                await self.store.commit(name, change)

    def _release_later(self, name: str, identity: str) -> None:
        """Release a cancelled reservation in the background: its write may succeed, and others would wait."""
        task = asyncio.create_task(self.release(name, identity), name=f"give back {identity}")
        self.releasing.add(task)
        task.add_done_callback(self.releasing.discard)

    def _change(
        self, manifest: PodJson, request: Request, holder: PodRef, identity: str, chosen: Placement
    ) -> ledger_store.Change:
        seen = self.store.view(chosen.node)

        def change(node: GpuNode) -> GpuNode:
            if any(entry.id == identity for entry in node.allocations):
                return node  # an earlier attempt was written, but its answer was lost
            outcome: Placement | Refusal = chosen
            if seen is None or not _are_as_seen(chosen, node, seen):
                outcome = self._place_on(NodeView.from_node(node), manifest, request)
            if isinstance(outcome, Refusal):
                raise errors.LedgerError(outcome.reason)
            until = None if holder.uid and self.is_permanent else self.wall_clock() + self.lifetime_seconds
            entry = outcome.allocation(request, allocation_id=identity, pod=holder, reserved_until=until)
            return ledger.reserve(node, entry)

        return change


def _are_as_seen(chosen: Placement, node: GpuNode, seen: NodeView) -> bool:
    if node is seen.node:
        return True
    gpus, before, held = node.gpu_by_uuid(), seen.node.gpu_by_uuid(), ledger.use(node)
    return all(
        uuid in gpus and gpus[uuid] == before.get(uuid) and _amounts(held[uuid]) == _amounts(seen.used[uuid])
        for share in chosen.shares
        for uuid in share.gpu_uuids
    )


def _amounts(held: ledger.GpuUse) -> tuple[int, list[tuple[str, tuple[GivenShare, ...]]]]:
    return held.lent_bytes, [(entry.id, entry.shares) for entry in held.holders]


def new_id() -> str:
    """Return 128 random bits in lower-case base 32: an ID that cannot be guessed, valid in labels and metrics."""
    return base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
