"""The defragmenter: the standing form of `kubectl gpushare defrag --moves`, in the placer, off by default.

Now and then it has the planner find a few moves that are worth it. It tells them as Events; in mode `auto` it makes
them too, one after the other, and stops at the first that goes otherwise than planned. What makes a move safe is what
makes `defrag --apply` safe: an eviction, which budgets can refuse, and cordons that end by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.allocation import PodRef
from gpushare.cluster import api_client, api_errors, events
from gpushare.defragmentation import cordons, evicting
from gpushare.defragmentation.evicting import Sibling
from gpushare.gpunode import GpuNode
from webhook.controllers.temporary_cordons import TemporaryCordons
from webhook.metrics import Metrics
from webhook.planner.process import PlanningError
from webhook.planner.suggested_plan import SuggestedMove, SuggestedPlan, SuggestedStep
from webhook.pods.stored_pod import Pod

logger = logging.getLogger(__name__)

OFF, AUTO = "off", "auto"

MOVE_SECONDS: Final = 300.0  # a pod may take its time to end
LOOK_SECONDS: Final = 1.0
MIN_GAIN: Final = 0.1  # GPUs per move: what nobody has asked for has to be worth more than a plan that somebody reads
SETTLED_SECONDS: Final = 3600.0  # a workload of which a pod was moved is left alone for as long

Plan = Callable[[list[str]], Awaitable[SuggestedPlan]]


class _StoppedError(Exception):
    """A move that went otherwise than planned; the message says how."""


class Defragmenter:
    """plan: makes a suggestion; it is given the UIDs of owners to leave alone. nodes, pods: as they are stored."""

    def __init__(
        self,
        api: api_client.ApiClient,
        recorder: events.Recorder,
        measures: Metrics,
        *,
        mode: str,
        every_seconds: float,
        plan: Plan,
        nodes: Callable[[], list[GpuNode]],
        pods: Callable[[], Mapping[Any, Pod]],
        leads: Callable[[], bool],
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        move_seconds: float = MOVE_SECONDS,
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._metrics = measures
        self._is_auto = mode == AUTO
        self._every_seconds = every_seconds
        self._plan = plan
        self._nodes = nodes
        self._pods = pods
        self._leads = leads
        self._wall_clock = wall_clock
        self._clock = clock
        self._move_seconds = move_seconds
        self._settled: dict[str, float] = {}  # UID of an owner -> until when

    async def run(self) -> None:
        """Plan now and then while we lead, until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            if self._leads():
                try:
                    await self.step()
                except Exception:
                    # What nobody foresaw must not take the webhook down, which shares this process.
                    self._metrics.planned("failed")
                    logger.exception("Defragmenting failed, and is tried again at its time")

    async def step(self) -> None:
        """One plan, and in mode `auto` its moves. Never raises for what the API server or the planner says."""
        try:
            if await self._is_another_at_work():
                logger.info("No plan to defragment while a `defrag --apply` is at work")
                return
            suggestion = await self._plan(self._still_settled())
        except (PlanningError, api_errors.ClusterError) as error:
            logger.warning("No plan to defragment", extra={"err": str(error)})
            self._metrics.planned("failed")
            return
        moves = suggestion.moves
        if not moves:
            self._metrics.planned("nothing")
            return
        self._metrics.planned("found", gained=suggestion.gained)
        self._tell(suggestion)
        if self._is_auto:
            await self._carry_out(suggestion)

    def _tell(self, suggestion: SuggestedPlan) -> None:
        moves = suggestion.moves
        what = f"{len(moves)} move{'s' * (len(moves) > 1)} would gain {suggestion.gained:.2g} GPUs"
        planned = "; ".join(f"{move.pod} from {move.before} to {move.after}" for move in moves)
        by_hand = "" if self._is_auto else f": see `kubectl gpushare defrag --moves {len(moves)}`"
        for node in dict.fromkeys(move.source for move in moves):
            regarding = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "name": node}
            self._recorder.record(regarding, contract.EVENT_DEFRAG, f"{what}{by_hand}: {planned}", action="Defragment")
        made = 0
        for step in suggestion.steps:
            made += len(step.moves)
            if step.admitted is not None:
                regarding = {"apiVersion": "v1", "kind": "Pod", **_reference(step.admitted)}
                note = f"would fit on {step.gpus} after {made} move{'s' * (made > 1)} of other pods{by_hand}"
                self._recorder.record(regarding, contract.EVENT_DEFRAG, note, action="Defragment")
        logger.info("A plan to defragment", extra={"moves": len(moves), "gained": round(suggestion.gained, 3)})

    async def _carry_out(self, suggestion: SuggestedPlan) -> None:
        kept = TemporaryCordons(self._api, wall_clock=self._wall_clock)
        made = 0
        try:
            for step in suggestion.steps:
                for move in step.moves:
                    await self._move(move, kept)
                    made += 1
                await kept.release()
                await self._admit(step)
        except (_StoppedError, api_errors.ClusterError) as error:
            self._metrics.moved("stopped")
            extra = {"made": made, "of": len(suggestion.moves), "err": str(error)}
            logger.warning("Stopped defragmenting", extra=extra)
        finally:
            await kept.release()

    async def _move(self, move: SuggestedMove, kept: TemporaryCordons) -> None:
        """Evict a pod, and wait until its owner has a placed pod in its stead, where the plan expects it."""
        if not self._leads():
            raise _StoppedError("another replica was elected")
        pod = next((pod for pod in self._pods().values() if pod.ref.uid == move.pod.uid), None)
        if pod is None or pod.leaves or pod.controller is None or pod.allocation_id != move.allocation_id:
            raise _StoppedError(f"pod {move.pod} is not as the plan has it")
        owner, uid = pod.controller, pod.ref.uid
        before = frozenset(sibling.uid for sibling in self._siblings(owner.uid))
        wanted = sum(sibling.is_live for sibling in self._siblings(owner.uid))
        if not await kept.close(move.closed, seconds=self._move_seconds + cordons.MORE_SECONDS):
            raise _StoppedError(f"another `defrag --apply` is at work on {move.source}")
        await self._api.create(f"{pod.path}/eviction", evicting.eviction(pod.ref.namespace, pod.ref.name, uid=uid))
        self._settled[owner.uid] = self._clock() + SETTLED_SECONDS
        note = f"evicted from {move.before} to defragment: {owner.kind} {owner.name} recreates it, for {move.after}"
        self._recorder.record(pod.reference, contract.EVENT_MOVED, note, action="Defragment")
        logger.warning("Evicted a pod to defragment", extra={"pod": str(pod.ref), "to": move.after})
        until = self._clock() + self._move_seconds
        while waits := evicting.waits_for(
            uid, self._siblings(owner.uid), before=before, kind=owner.kind, wanted=wanted
        ):
            if self._clock() >= until:
                raise _StoppedError(f"pod {move.pod} was evicted, and after {self._move_seconds:.0f} s {waits}")
            await asyncio.sleep(LOOK_SECONDS)
        self._metrics.moved("made")
        nodes = {sibling.node for sibling in evicting.successors(self._siblings(owner.uid), before)}
        if move.target not in nodes:
            instead = ", ".join(sorted(nodes)) or "no node"
            raise _StoppedError(f"the pod in the stead of {move.pod} is on {instead}, and {move.after} was planned")

    async def _admit(self, step: SuggestedStep) -> None:
        """Wait until the pod that the moves let in is placed."""
        if step.admitted is None:
            return
        until = self._clock() + self._move_seconds
        while any(pod.ref.uid == step.admitted.uid and pod.waits for pod in self._pods().values()):
            if self._clock() >= until:
                raise _StoppedError(f"there is still no room for {step.admitted}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_another_at_work(self) -> bool:
        """Whether a `defrag --apply` keeps GPUs cordoned; what killed ones have left cordoned is uncordoned."""
        is_kept = False
        for node in self._nodes():
            marks = cordons.read(node)
            if marks and cordons.left_behind(node, now=self._wall_clock()):
                await TemporaryCordons(self._api, wall_clock=self._wall_clock).open_left(node.name)
            is_kept = is_kept or any(mark.until > self._wall_clock() for mark in marks.values())
        return is_kept

    def _still_settled(self) -> list[str]:
        now = self._clock()
        self._settled = {uid: until for uid, until in self._settled.items() if until > now}
        return [*self._settled]

    def _siblings(self, owner: str) -> list[Sibling]:
        return [
            Sibling(
                uid=pod.ref.uid,
                name=str(pod.ref),
                node=pod.placed_on,
                is_placed=bool(pod.allocation_id),
                is_gated=pod.is_gated,
                is_live=not pod.leaves and not pod.has_ended,
                reason=pod.annotations.get(contract.REASON, ""),
            )
            for pod in self._pods().values()
            if pod.controller is not None and pod.controller.uid == owner
        ]


def _reference(ref: PodRef) -> dict[str, str]:
    return {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
