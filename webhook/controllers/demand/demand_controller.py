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
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from gpushare import errors
from gpushare.cluster import api_errors
from gpushare.placement import NodeView
from gpushare.quantity import counted
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import Deferred, GpuKind, NodeDemand, Packing, Unmet, WaitingPod
from webhook.controllers import queue
from webhook.controllers.demand import demand_kinds, demand_pods
from webhook.controllers.demand.demand_client import DemandClient
from webhook.controllers.demand.demand_pods import DemandPod
from webhook.controllers.demand.provisioning_requests import GangDemand, GangRequests
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
LATE_SECONDS: Final = 900.0  # after so long, Cluster Autoscaler gives up a node that does not start
MAX_PODS: Final = 2000  # packed in one round; the others wait behind them
MAX_WORDS: Final = 300  # characters quoted from the API server's error
_COME_FIRST: Final = {
    Deferred.LATE: f"; newer pods come first, as it has waited for over {LATE_SECONDS / 60:g} minutes",
    Deferred.OVERSIZED: "; other pods come first, as no known node has as many GPUs",
}
_STUCK: Final = "; asks for no nodes, as its gang has a pod that another node would not help, or too many pods wait"
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


@dataclasses.dataclass(frozen=True, slots=True)
class LackingGang:
    """The pods of a gang by UID, in queue order. size: of these, so many have to fit at the same time."""

    all: Sequence[str]
    size: int

    @property
    def members(self) -> Sequence[str]:
        """Those that have to fit together; the others join them."""
        return self.all[: self.size]

    def is_stuck(self, useless: Container[str]) -> bool:
        """Whether it cannot start even on new nodes, or is cut off; useless: pods that no node would help."""
        return len(self.all) < self.size or any(uid in useless for uid in self.members)


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
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._memory = demand_kinds.PoolMemory(self.clock)
        self._no_shares: dict[str, float] = {}  # nodes with room that take no shares, and since when
        asked, name = self.settings, self.settings.provisioning_class
        self._requests = GangRequests(self.api, name, asked.resource, asked.max_gpus, self.wall_clock) if name else None
        self.elected()

    def elected(self) -> None:
        """Start from what is in the cluster: another placer may have created demand pods meanwhile."""
        self._may_exist = True
        if self._requests is not None:
            self._requests.may_exist = True
        self._settled_at = 0.0
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
        found = ((pod, pod.request) for pod, why in waiting if why.cause in _LACK_ROOM)
        lacking = [(pod, request) for pod, request in found if isinstance(request, Request)]
        del lacking[MAX_PODS:]
        if not lacking and not self._asks:
            return list(waiting)
        suffixes: dict[str, str] = {}
        try:
            if lacking:
                self._template = (await self.api.get(demand_pods.TEMPLATE_PATH))["template"]
            gangs = _gangs(lacking, {pod.ref.uid: why.together for pod, why in waiting}) if self._requests else {}
            packing, together = await self._ask_for_gangs(await self._to_pack(lacking, suffixes), gangs, suffixes)
            failed = await self._write(packing, together)
        except api_errors.ClusterError as error:
            logger.warning("Could not read or write demand pods", extra={"err": str(error)})
            end = f"; asks for no node: {errors.shortened(str(error), longest=MAX_WORDS)}"
            suffixes = {**dict.fromkeys((pod.ref.uid for pod, _ in lacking), end), **suffixes}
        else:
            suffixes |= _suffixes(packing, failed, self.settings)
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
        asking = []
        scratch = ScratchStore(self._without_reservations(views, lacking))
        try:
            for pod, request in lacking:
                await asyncio.sleep(0)
                if pod.group:
                    fits = await self.reservation.on(scratch).reserve(pod.manifest, request, pod.ref)
                    if not isinstance(fits, Refusal):
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
                is_late = queue.age_seconds(pod.created, now) >= LATE_SECONDS
                tried = kinds[request, selection]
                asking.append(WaitingPod(pod.ref.uid, pod.manifest, request, selection, tried, is_late))
        finally:
            scratch.close()
        return asking

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

    async def _ask_for_gangs(
        self, asking: Sequence[WaitingPod], gangs: Mapping[str, LackingGang], suffixes: dict[str, str]
    ) -> tuple[Packing, int]:
        """Ask for the nodes of gangs together; return the packing of the other pods, and how many GPUs gangs ask for.

        A gang asks for no more than the pods ahead of it leave, and for nothing if one of its pods cannot be helped.
        """
        if self._requests is None:
            return await self._pack(asking, self.settings.max_gpus), 0
        number = {pod.uid: number for number, pod in enumerate(asking)}
        stuck = {uid for gang in gangs.values() for uid in gang.all if gang.is_stuck(suffixes)}
        suffixes |= {uid: _STUCK for uid in stuck if uid not in suffixes}
        together = {uid for gang in gangs.values() for uid in gang.members}
        others = [one for one in asking if one.uid not in together | stuck]
        packing = await self._pack(others, self.settings.max_gpus)
        demands = []
        for name, gang in gangs.items():
            pods = tuple(asking[number[uid]] for uid in gang.members if uid in number and uid not in stuck)
            if pods:
                ahead = (each.gpus for each in packing.demands if number[each.uids[0]] < number[pods[0].uid])
                demands.append(GangDemand(name, pods, sum(ahead)))
        default = self.store.chooser.isolation
        ends, asked = await self._requests.reconcile(demands, self._template, default, self._excluded)
        suffixes |= ends
        if packing.gpus + asked > self.settings.max_gpus:
            packing = await self._pack(others, max(0, self.settings.max_gpus - asked))
        return packing, asked

    async def _pack(self, asking: Sequence[WaitingPod], most: int) -> Packing:
        key = most, [(pod.uid, pod.request, pod.selection, pod.kinds, pod.is_late) for pod in asking]
        if self._last[0] != key:
            default = self.store.chooser.isolation
            packing = await asyncio.to_thread(node_demand.pack, asking, max_gpus=most, default=default)
            self._last = (key, packing)
        return self._last[1]

    async def _write(self, packing: Packing, together: int) -> dict[NodeDemand, str]:
        """Bring the demand pods in line with the packing; return the demands whose pod was rejected, and why.

        together: the GPUs that gangs ask for.
        """
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
        self.report(packing.gpus + together - sum(demand.gpus for demand in failed))
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


def _gangs(lacking: Sequence[tuple[Pod, Request]], together: Mapping[str, int]) -> dict[str, LackingGang]:
    """Return the gangs that have to fit together, by name; together: of the pods' refusals, by UID."""
    found: dict[str, list[str]] = {}
    for pod, _ in lacking:
        if pod.group and together[pod.ref.uid] > 1:
            found.setdefault(f"{pod.ref.namespace}/{pod.group}", []).append(pod.ref.uid)
    return {name: LackingGang(uids, together[uids[0]]) for name, uids in found.items()}


def _suffixes(packing: Packing, failed: Mapping[NodeDemand, str], settings: DemandSettings) -> dict[str, str]:
    """Return the end of each pod's reason, by UID."""
    asked: dict[tuple[str, str], int] = {}
    for demand in packing.demands:
        if demand not in failed:
            where = demand.selection, demand.product
            asked[where] = asked.get(where, 0) + demand.gpus
    first = {uid: _COME_FIRST[why] for uid, why in packing.deferred.items()}
    ends: dict[str, str] = {}
    for demand in packing.demands:
        if demand in failed:
            end = f"; asks for no node: {errors.shortened(failed[demand], longest=MAX_WORDS)}"
            ends |= dict.fromkeys(demand.uids, end)
        else:
            gpus = asked[demand.selection, demand.product]
            end = f"; waits for a node: {counted(gpus, 'GPU')} asked for"
            ends |= {uid: end + first.get(uid, "") for uid in demand.uids}
    bound = f"; asks for no node: no more than {settings.max_gpus} GPUs are asked for (--demand-max-gpus)"
    no_kind = "; asks for no node: it fits on no GPU that is known (--demand-products), even if that is empty"
    for uid, why in packing.unmet.items():
        ends[uid] = bound + first.get(uid, "") if why is Unmet.BOUND else no_kind
    return ends
