"""The demand controller: keeps as many demand pods as GPUs are missing for gated pods, and says so on those pods.

It runs in each round of the placer, after the gated pods have had their turn. It reads the demand pods from the API
server each time, so that the next placer continues where this one ended. A failed call never holds up gated pods: the
reason goes to the pods that wait for a node, and the next round retries.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from gpushare import errors
from gpushare.cluster import api_client, api_errors
from gpushare.placement import NodeView
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import GpuKind, NodeDemand, Packing, Unmet, WaitingPod
from webhook.controllers.demand import demand_kinds, demand_pods
from webhook.controllers.demand.demand_pods import DemandPod
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store
from webhook.store.ledger_store import ScratchStore
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

Refusals = Sequence[tuple[Pod, Refusal]]

RECHECK_SECONDS: Final = 5.0  # there is no watch of demand pods, and other clients may delete them
SETTLE_SECONDS: Final = 2.0  # after a demand pod was bound, until the waiting pods have been tried on its node
REJECTED_SECONDS: Final = 10.0  # before the next try after the API server rejected a demand pod
FOREIGN_SECONDS: Final = 60.0  # by when the agent of a new node has created its GPUNode
MAX_PODS: Final = 2000  # packed in one round; the others wait behind them
MAX_WORDS: Final = 300  # characters quoted from the API server's error
_LACK_ROOM: Final = (None, Cause.NO_GPU, Cause.HOLD)


@dataclasses.dataclass(frozen=True, slots=True)
class DemandSettings:
    """resource: what demand pods ask for. max_gpus: of all together. kinds: that new nodes could have, best first."""

    resource: str
    max_gpus: int
    kinds: tuple[GpuKind, ...] = ()


class DemandClient(Protocol):
    """The calls of the API client that demand pods need; all raise ClusterError."""

    async def get(self, path: str) -> dict[str, Any]:
        """Return the object at `path`."""

    async def list(
        self, path: str, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        """Return a collection."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""

    async def delete(self, path: str, *, uid: str | None = None) -> dict[str, Any]:
        """Delete an object."""


@dataclasses.dataclass(eq=False)
class DemandController:
    """Keeps the demand pods of one cluster."""

    api: DemandClient
    store: ledger_store.LiveLedger
    reservation: Reservation
    settings: DemandSettings
    _: dataclasses.KW_ONLY
    report: Callable[[int], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._may_exist = True  # whether there may be demand pods, from this placer or a former one
        self._settled_at = 0.0
        self._rejected: dict[str, tuple[float, str]] = {}  # by key: until when none is created, and why
        self._template: Mapping[str, Any] = {}  # the last one read
        self._room: dict[str, frozenset[str]] = {}  # nodes with room for a demand pod, by its key, in the last round
        self._foreign: dict[str, float] = {}  # nodes with room but without a GPUNode, and since when
        self._last: tuple[object, Packing] = ((), Packing())

    @property
    def recheck_seconds(self) -> float | None:
        """How long until the next round is due; None while nothing is asked for."""
        return RECHECK_SECONDS if self._may_exist else None

    async def withdraw(self) -> None:
        """Delete the demand pods that new room makes superfluous, before the waiting pods are placed there.

        Otherwise an autoscaler that looks at this moment finds the new node in use, and starts another one.
        """
        before, self._room = self._room, {}
        template, spare = self._template, dict[str, int]()
        for demand in {demand_pods.key_of(each): each for each in self._last[1].demands}.values():
            key, needed = demand_pods.key_of(demand), demand_pods.amount(self.settings.resource, demand.gpus)
            free = self._nodes_with_room(demand, template)
            self._room[key] = frozenset(free)
            if key in before:
                spare[key] = sum(amount // needed for name, amount in free.items() if name not in before[key])
        if any(spare.values()):
            try:
                for one in (await self.api.list(demand_pods.PODS_PATH, keep=DemandPod.from_manifest)).items:
                    if spare.get(one.key, 0) > 0 and not one.leaves:
                        spare[one.key] -= 1
                        await self._delete(one)
            except api_errors.ClusterError as error:
                logger.warning("Could not withdraw demand pods", extra={"err": str(error)})

    async def reconcile(self, waiting: Refusals) -> list[tuple[Pod, Refusal]]:
        """Create and delete demand pods; return the refusals, with what is asked for or why nothing is."""
        lacking = [(pod, pod.request, why) for pod, why in waiting[:MAX_PODS] if why.cause in _LACK_ROOM]
        if not lacking and not self._may_exist:
            return list(waiting)
        suffixes: dict[str, str] = {}
        asking = await self._to_pack(lacking, suffixes)
        packing = await self._pack(asking)
        try:
            failed = await self._write(packing)
        except api_errors.ClusterError as error:
            logger.warning("Could not read or write demand pods", extra={"err": str(error)})
            failed = dict.fromkeys(packing.demands, str(error))
        suffixes |= _suffixes(packing, failed, self.settings)
        return [
            (pod, dataclasses.replace(why, reason=why.reason + suffixes.get(pod.ref.uid, ""))) for pod, why in waiting
        ]

    async def _to_pack(
        self, lacking: Sequence[tuple[Pod, Request | str, Refusal]], suffixes: dict[str, str]
    ) -> list[WaitingPod]:
        """Return the pods for which a new node could help. Of a gang, members that would fit now need none."""
        views = list(self.store.views())
        chooser = self.store.chooser
        pools = demand_kinds.of_cluster(views, chooser)
        kinds: dict[tuple[Request, str], tuple[GpuKind, ...]] = {}
        empty: dict[str, list[NodeView]] = {}  # nodes of each pool
        asking = []
        scratch = ScratchStore(self.store)
        try:
            for pod, request, _ in lacking:
                if isinstance(request, str):
                    continue
                if pod.group:
                    fits = await self.reservation.on(scratch).reserve(pod.manifest, request, pod.ref)
                    if not isinstance(fits, Refusal):
                        continue
                selection = demand_pods.selection_of(pod.manifest)
                key = request, selection
                if key not in kinds:
                    kinds[key] = demand_kinds.of_pod(pools, self.settings.kinds, request, selection, chooser)
                if selection not in empty:
                    empty[selection] = demand_kinds.empty_nodes(views, selection, chooser)
                useless = demand_kinds.unhelpful(empty[selection], pod.manifest, request, chooser)
                if useless is not None:
                    suffixes[pod.ref.uid] = f"; asks for no node, as another would not help: {useless}"
                    continue
                asking.append(WaitingPod(pod.ref.uid, pod.manifest, request, selection, kinds[key]))
                await asyncio.sleep(0)
        finally:
            scratch.close()
        return asking

    async def _pack(self, asking: Sequence[WaitingPod]) -> Packing:
        key = [(pod.uid, pod.request, pod.selection, pod.kinds) for pod in asking]
        if self._last[0] != key:
            default, most = self.store.chooser.isolation, self.settings.max_gpus
            packing = await asyncio.to_thread(node_demand.pack, asking, max_gpus=most, default=default)
            self._last = (key, packing)
        return self._last[1]

    async def _write(self, packing: Packing) -> dict[NodeDemand, str]:
        """Bring the demand pods in line with the packing; return the demands whose pod was rejected, and why."""
        pods = (await self.api.list(demand_pods.PODS_PATH, keep=DemandPod.from_manifest)).items
        if packing.demands:
            self._template = (await self.api.get(demand_pods.TEMPLATE_PATH))["template"]
        now = self.clock()
        if any(one.is_done for one in pods):
            self._settled_at = now + SETTLE_SECONDS
        self._rejected = {key: known for key, known in self._rejected.items() if now < known[0]}
        plan = demand_pods.plan(pods, packing.demands)
        self._may_exist = bool(pods or packing.demands)
        for one in plan.delete:
            await self._delete(one)
        failed: dict[NodeDemand, str] = {}
        for demand in plan.create if now >= self._settled_at else ():
            until, sentence = self._rejected.get(demand_pods.key_of(demand), (0.0, ""))
            if now < until:
                failed[demand] = sentence
                continue
            excluded = self._excluded(demand)
            body = demand_pods.manifest(self._template, demand, resource=self.settings.resource, excluded=excluded)
            try:
                await self.api.create(demand_pods.PODS_PATH, body)
            except (api_errors.Forbidden, api_errors.Invalid) as error:
                logger.warning("The API server rejects a demand pod", extra={"err": str(error)})
                failed[demand] = str(error)
                self._rejected[demand_pods.key_of(demand)] = now + REJECTED_SECONDS, str(error)
            else:
                extra = {"gpus": demand.gpus, "pods": len(demand.uids), "excluded": len(excluded)}
                logger.info("Asked for a node", extra=extra)
        self.report(packing.gpus - sum(demand.gpus for demand in failed))
        return failed

    def _nodes_with_room(self, demand: NodeDemand, template: Mapping[str, Any]) -> dict[str, int]:
        chooser = self.store.chooser
        names = [spec.name for spec in chooser.cache.node_specs()]
        return demand_kinds.nodes_with_room(demand, template, self.settings.resource, names, chooser)

    def _excluded(self, demand: NodeDemand) -> list[str]:
        """Return the hostnames of the nodes that have room for a demand pod, and were of no use to the waiting pods.

        A node whose agent has not reported GPUs yet, or whose GPUNode is not open, may still be: a demand pod that is
        bound there asks for no other.
        """
        chooser, now = self.store.chooser, self.clock()
        views = {view.node.name: view for view in self.store.views()}
        with_room = self._nodes_with_room(demand, self._template)
        self._foreign = {name: self._foreign.get(name, now) for name in with_room if name not in views}
        tried = (
            name
            for name in with_room
            if (
                any(gpu.takes_shares for gpu in views[name].node.gpus)
                if name in views
                else now - self._foreign[name] >= FOREIGN_SECONDS
            )
        )
        return [chooser.hostname(name) for name in tried]

    async def _delete(self, one: DemandPod) -> None:
        try:
            await self.api.delete(f"{demand_pods.PODS_PATH}/{one.name}", uid=one.uid)
        except (api_errors.NotFound, api_errors.Conflict):
            return  # it is gone
        logger.info("Withdrew a demand pod", extra={"pod": one.name})


def _suffixes(packing: Packing, failed: Mapping[NodeDemand, str], settings: DemandSettings) -> dict[str, str]:
    """Return the end of each pod's reason, by UID."""
    asked: dict[tuple[str, str], int] = {}
    for demand in packing.demands:
        if demand not in failed:
            where = demand.selection, demand.product
            asked[where] = asked.get(where, 0) + demand.gpus
    ends: dict[str, str] = {}
    for demand in packing.demands:
        if demand in failed:
            end = f"; asks for no node: {errors.shortened(failed[demand], longest=MAX_WORDS)}"
        else:
            gpus = asked[demand.selection, demand.product]
            end = f"; waits for a node: {gpus} {'GPU' if gpus == 1 else 'GPUs'} asked for"
        ends |= dict.fromkeys(demand.uids, end)
    bound = f"; asks for no node: no more than {settings.max_gpus} GPUs are asked for (--demand-max-gpus)"
    no_kind = "; asks for no node: it fits on no GPU that is known (--demand-products), even if that is empty"
    return ends | {uid: bound if why is Unmet.BOUND else no_kind for uid, why in packing.unmet.items()}
