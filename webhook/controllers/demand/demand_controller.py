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
from typing import Any, Final

from gpushare import errors
from gpushare.cluster import api_client, api_errors
from gpushare.placement import NodeView
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import GpuKind, NodeDemand, Packing, WaitingPod
from webhook.controllers import queue
from webhook.controllers.demand import demand_kinds, demand_pods, gang_demand
from webhook.controllers.demand.demand_pods import DemandPod
from webhook.controllers.demand.gang_demand import LackingGang
from webhook.controllers.demand.provisioning_requests import GangRequests
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store
from webhook.store.ledger_store import FilteredStore, ScratchStore
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

Refusals = Sequence[tuple[Pod, Refusal]]

RECHECK_SECONDS: Final = 5.0  # there is no watch of demand pods, and other clients may delete them
SETTLE_SECONDS: Final = 2.0  # after a demand pod was bound, until the waiting pods have been tried on its node
REJECTED_SECONDS: Final = 10.0  # before the next try after the API server rejected a demand pod
FOREIGN_SECONDS: Final = 60.0  # by when the agent of a new node has reported GPUs that take shares
UNTRIED_SECONDS: Final = 60.0  # for so long a new placer changes nothing while some pods have not been tried yet
MAX_PODS: Final = 2000  # packed in one round; the others wait behind them
_JOINS: Final = "; asks for no node until the nodes of its gang's minimum, {} pods, are provisioned"
_LACK_ROOM: Final = (None, Cause.NO_GPU, Cause.HOLD)


@dataclasses.dataclass(frozen=True, slots=True)
class DemandSettings:
    """resource: what demand pods ask for. max_gpus: of all together. kinds: that new nodes could have, best first.
    provisioning_class: of the ProvisioningRequests for gangs; empty: gangs have demand pods, too.
    """

    resource: str
    max_gpus: int
    kinds: tuple[GpuKind, ...] = ()
    provisioning_class: str = ""


@dataclasses.dataclass(eq=False)
class DemandController:
    """Keeps the demand pods of one cluster."""

    api: api_client.ApiClient
    store: ledger_store.LiveLedger
    reservation: Reservation
    settings: DemandSettings
    _: dataclasses.KW_ONLY
    report: Callable[[int], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._memory = demand_kinds.PoolMemory(self.clock)
        self._no_shares: dict[str, float] = {}  # nodes with room that take no shares, and since when
        asked, name = self.settings, self.settings.provisioning_class
        clocks = self.clock, self.wall_clock
        self._requests = GangRequests(self.api, name, asked.resource, asked.max_gpus, *clocks) if name else None
        self.elected()

    def elected(self) -> None:
        """Start from what is in the cluster: another placer may have created demand pods meanwhile."""
        self._may_exist = True
        if self._requests is not None:
            self._requests.may_exist = True
        self._settled_at = 0.0
        self._tries_until = self.clock() + UNTRIED_SECONDS
        self._rejected: dict[str, tuple[float, str]] = {}  # by key: until when none is created, and why
        self._template: Mapping[str, Any] = {}  # the last one read
        self._room: dict[str, frozenset[str]] = {}  # nodes with room for a demand pod, by its key, in the last round
        self._last: tuple[object, Packing] = ((), Packing())

    @property
    def recheck_seconds(self) -> float | None:
        """How long until the next round is due; None while nothing is asked for."""
        return RECHECK_SECONDS if self._asks else None

    @property
    def _asks(self) -> bool:
        return self._may_exist or (self._requests is not None and self._requests.may_exist)

    async def withdraw(self) -> None:
        """Delete the demand pods that new room makes superfluous, before the waiting pods are placed there.

        Otherwise an autoscaler that looks at this moment finds the new node in use, and starts another one.
        """
        before, self._room = self._room, {}
        spare = dict[str, int]()
        for key, demand in {self._key(each): each for each in self._last[1].demands}.items():
            needed = demand_pods.amount(self.settings.resource, demand.gpus)
            free = self._nodes_with_room(demand)
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
        if any(why.cause is Cause.TURN for _, why in waiting) and self.clock() < self._tries_until:
            return list(waiting)  # the former placer has asked for some of them
        self._tries_until = 0.0
        found = ((pod, pod.request) for pod, why in waiting if why.cause in _LACK_ROOM)
        lacking = [(pod, request) for pod, request in found if isinstance(request, Request)]
        del lacking[MAX_PODS:]
        if not lacking and not self._asks:
            return list(waiting)
        suffixes: dict[str, str] = {}
        try:
            if lacking:
                self._template = (await self.api.get(demand_pods.TEMPLATE_PATH))["template"]
            asking = await self._to_pack(lacking, suffixes)
            together = {pod.ref.uid: why.together for pod, why in waiting}
            gangs = gang_demand.lacking_gangs(lacking, together) if self._requests is not None else {}
            packing = await self._share_with_gangs(asking, gangs, suffixes)
            failed = await self._write(packing)
            if self._requests is not None:
                # Only now, as demand pods in the way of a request had to be deleted first.
                suffixes |= await self._requests.ask(self._template, self._excluded)
                for gang in gangs.values():
                    if (end := suffixes.get(gang.members[0], "")).startswith(gang_demand.NO_NODES):
                        joins = _JOINS.format(gang.size)
                        suffixes |= {uid: end for uid in gang.joiners if suffixes.get(uid) == joins}
            gpus = packing.gpus - sum(demand.gpus for demand in failed)
            self.report(gpus + (self._requests.asked if self._requests is not None else 0))
        except api_errors.ClusterError as error:
            logger.warning("Could not read or write demand pods", extra={"err": str(error)})
            end = f"; asks for no node: {errors.shortened(str(error), longest=demand_pods.MAX_WORDS)}"
            suffixes = {**dict.fromkeys((pod.ref.uid for pod, _ in lacking), end), **suffixes}
        else:
            suffixes |= demand_pods.ends(packing, failed, self.settings.max_gpus)
        return [
            (pod, dataclasses.replace(why, reason=why.reason + suffixes.get(pod.ref.uid, ""))) for pod, why in waiting
        ]

    async def _to_pack(self, lacking: Sequence[tuple[Pod, Request]], suffixes: dict[str, str]) -> list[WaitingPod]:
        """Return the pods for which a new node could help. Of a gang, members that would fit now need none."""
        views, chooser, template, now = list(self.store.views()), self.store.chooser, self._template, self.wall_clock()
        self._memory.forget_old()
        pools = demand_kinds.of_cluster(views, chooser)
        products = frozenset(kind.product for kind in (*(pool.kind for pool in pools), *self.settings.kinds))
        own: dict[str, tuple[list[GpuKind], list[GpuKind]]] = {}  # by selection: of nodes now, and of former ones
        empty: dict[str, list[NodeView]] = {}
        kinds: dict[tuple[Request, str], tuple[GpuKind, ...]] = {}
        asking, refused = [], set[object]()
        scratch = ScratchStore(self._without_reservations(views, lacking))
        try:
            for pod, request in lacking:
                await asyncio.sleep(0)
                if pod.group and not await self._is_refused(pod, request, scratch, refused):
                    continue
                selection = demand_pods.selection_of(pod.manifest)
                useless = demand_pods.conflict(selection, template)
                if useless is not None:
                    suffixes[pod.ref.uid] = f"; asks for no node: {useless}"
                    continue
                if selection not in own:
                    present = demand_kinds.of_selection(pools, selection, template, chooser)
                    own[selection] = present, self._memory.former_kinds(selection, present)
                    empty[selection] = demand_kinds.empty_nodes(views, selection, template, chooser)
                verdict = demand_kinds.unhelpful(empty[selection], pod.manifest, request, chooser)
                useless = self._memory.unhelpful(pod.manifest, request, verdict)
                if useless is not None:
                    suffixes[pod.ref.uid] = f"; asks for no node, as another would not help: {useless}"
                    continue
                if (request, selection) not in kinds:
                    named = self.settings.kinds
                    tried = demand_kinds.of_pod(*own[selection], named, products, request, selection, template)
                    kinds[request, selection] = tried
                is_late = queue.age_seconds(pod.created, now) >= demand_pods.LATE_SECONDS
                tried = kinds[request, selection]
                asking.append(WaitingPod(pod.ref.uid, pod.manifest, request, selection, tried, is_late))
        finally:
            scratch.close()
        return asking

    async def _is_refused(self, pod: Pod, request: Request, scratch: ScratchStore, refused: set[object]) -> bool:
        """Whether the pod does not fit next to those that do; `refused`: such kinds of pods, as room only shrinks."""
        kind = pod.ref.namespace, queue.kind(pod)
        if kind in refused:
            return True
        fits = await self.reservation.on(scratch).reserve(pod.manifest, request, pod.ref)
        if isinstance(fits, Refusal) and fits.cause is None and not self.store.chooser.avoided(pod.manifest).blocked:
            refused.add(kind)
        return isinstance(fits, Refusal)

    def _without_reservations(
        self, views: Sequence[NodeView], lacking: Sequence[tuple[Pod, Request]]
    ) -> ledger_store.LedgerStore:
        """Return the ledger without what is reserved for gangs that lack room, as it is theirs."""
        members = {pod.ref.uid for pod, _ in lacking if pod.group}
        reserved: dict[str, list[str]] = {}
        for view in views if members else ():
            for entry in view.node.allocations:
                if entry.is_backfill_reservation and entry.pod.uid in members:
                    reserved.setdefault(view.node.name, []).append(entry.id)
        return FilteredStore(self.store, reserved)

    async def _share_with_gangs(
        self, asking: Sequence[WaitingPod], gangs: Mapping[str, LackingGang], suffixes: dict[str, str]
    ) -> Packing:
        """Decide which gangs ask for nodes; return the packing of the other pods, within what gangs leave.

        A gang asks for no more than the pods ahead of it leave, and for nothing if one of its pods cannot be helped.
        """
        requests = self._requests
        if requests is None or not (gangs or requests.may_exist):
            return await self._pack(asking, self.settings.max_gpus)
        await requests.read()
        waits: dict[str, str] = {}  # pods that get no demand pod
        able = dict[str, LackingGang]()
        for name, gang in gangs.items():
            if stuck := gang.stuck(suffixes):
                waits |= dict.fromkeys(gang.all, stuck)
            else:
                able[name] = gang
                if not requests.provisions(name):
                    waits |= dict.fromkeys(gang.joiners, _JOINS.format(gang.size))
        together = {uid for gang in able.values() for uid in gang.members}
        others = [one for one in asking if one.uid not in together and one.uid not in waits]
        packing = await self._pack(others, self.settings.max_gpus)
        demands = gang_demand.beside(able, asking, packing)
        suffixes |= {**waits, **suffixes}
        suffixes |= await requests.follow(demands, self._template, self.store.chooser.isolation)
        if packing.gpus + requests.asked > self.settings.max_gpus:
            packing = await self._pack(others, max(0, self.settings.max_gpus - requests.asked))
        return packing

    async def _pack(self, asking: Sequence[WaitingPod], most: int) -> Packing:
        key = most, [(pod.uid, pod.request, pod.selection, pod.kinds, pod.is_late) for pod in asking]
        if self._last[0] != key:
            default = self.store.chooser.isolation
            packing = await asyncio.to_thread(node_demand.pack, asking, max_gpus=most, default=default)
            self._last = (key, packing)
        return self._last[1]

    async def _write(self, packing: Packing) -> dict[NodeDemand, str]:
        """Bring the demand pods in line with the packing; return the demands whose pod was rejected, and why."""
        pods = (await self.api.list(demand_pods.PODS_PATH, keep=DemandPod.from_manifest)).items
        now = self.clock()
        if any(one.is_done for one in pods):
            self._settled_at = now + SETTLE_SECONDS
        self._rejected = {key: known for key, known in self._rejected.items() if now < known[0]}
        plan = demand_pods.plan(pods, packing.demands, self._template)
        self._may_exist = bool(pods or packing.demands)
        for one in plan.delete:
            await self._delete(one)
        failed: dict[NodeDemand, str] = {}
        for demand in plan.create if now >= self._settled_at else ():
            until, sentence = self._rejected.get(self._key(demand), (0.0, ""))
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
                self._rejected[self._key(demand)] = now + REJECTED_SECONDS, str(error)
            else:
                extra = {"gpus": demand.gpus, "pods": len(demand.uids), "excluded": len(excluded)}
                logger.info("Asked for a node", extra=extra)
        return failed

    def _key(self, demand: NodeDemand) -> str:
        return demand_pods.key_of(demand, self._template)

    def _nodes_with_room(self, demand: NodeDemand) -> dict[str, int]:
        chooser = self.store.chooser
        names = [spec.name for spec in chooser.cache.node_specs()]
        return demand_kinds.nodes_with_room(demand, self._template, self.settings.resource, names, chooser)

    def _excluded(self, demand: NodeDemand) -> list[str]:
        """Return the hostnames of the nodes that have room for a demand pod, and were of no use to the waiting pods.

        A node whose GPUs take no shares yet may still be: a demand pod that is bound there asks for no other.
        """
        chooser, now = self.store.chooser, self.clock()
        sharing = {view.node.name for view in self.store.views() if any(gpu.takes_shares for gpu in view.node.gpus)}
        there = {spec.name for spec in chooser.cache.node_specs()} - sharing
        self._no_shares = {name: since for name, since in self._no_shares.items() if name in there}
        with_room = self._nodes_with_room(demand)
        for name in there.intersection(with_room):
            self._no_shares.setdefault(name, now)
        return [
            chooser.hostname(name)
            for name in with_room
            if name in sharing or now - self._no_shares[name] >= FOREIGN_SECONDS
        ]

    async def _delete(self, one: DemandPod) -> None:
        try:
            await self.api.delete(f"{demand_pods.PODS_PATH}/{one.name}", uid=one.uid)
        except (api_errors.NotFound, api_errors.Conflict):
            return  # it is gone
        logger.info("Withdrew a demand pod", extra={"pod": one.name})
