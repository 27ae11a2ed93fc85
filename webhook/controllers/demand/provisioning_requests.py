"""ProvisioningRequests: the nodes of a gang, asked of Cluster Autoscaler together, so that all of them start or none.

Each gang that lacks room has at most one, under a name that follows from the gang, so the next placer continues with
it. Its PodTemplates must exist before the autoscaler reads it, and are deleted once no request names them. A request
counts until it is deleted. When it has failed or lasted too long, it is deleted, and its gang pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors
from gpushare.cluster import api_client, api_errors
from gpushare.quantity import counted
from gpushare.whatif.node_demand import NodeDemand, WaitingPod
from webhook.controllers import queue
from webhook.controllers.demand import demand_pods, gang_demand
from webhook.controllers.demand.gang_demand import NO_NODES, GangDemand, OwnTemplate, ProvisioningRequest

logger = logging.getLogger(__name__)

PATH: Final = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{contract.DEMAND_NAMESPACE}/provisioningrequests"
TEMPLATES_PATH: Final = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/podtemplates"
MAX_REQUESTS: Final = 4  # at a time; the quota of the component has the same bound
REJECTED_SECONDS: Final = 10.0  # of the first pause after the API server rejected something; doubled each time
RETRY_SECONDS: Final = 300.0  # of the pause after a failure of the autoscaler, and of the longest pause
REPLACE_SECONDS: Final = 60.0  # for so long a request stays that asks for too little
_MISSING: Final = (
    f"{NO_NODES}the cluster has no ProvisioningRequest (autoscaling.x-k8s.io/v1): install the CRD of Cluster "
    "Autoscaler 1.31.1 or later, or remove --demand-provisioning-class"
)
_AFTER: Final = "; other pods and gangs come first, as its last request failed"
_UNREAD: Final = "FailedToCreatePods"  # the autoscaler's reason if it has read a request before its templates


@dataclasses.dataclass(frozen=True, slots=True)
class _Pause:
    """Why and until when a gang asks for nothing, unless it asks for fewer pods; it stays after that, for the next."""

    until: float
    seconds: float
    pods: int
    end: str


@dataclasses.dataclass(eq=False)
class GangRequests:
    """Keeps the ProvisioningRequests, in three steps: `read` them, `follow` them, and `ask` for more.

    resource, max_gpus: of the demand controller's settings. clock: of the pauses; wall_clock: of the requests. asked:
    GPUs, as far as is known.
    """

    api: api_client.ApiClient
    class_name: str
    resource: str
    max_gpus: int
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    may_exist: bool = True
    asked: int = 0

    def __post_init__(self) -> None:
        self._found: Mapping[str, ProvisioningRequest] = {}
        self._templates: Sequence[OwnTemplate] = ()
        self._unread = ""  # why the requests could not be read
        self._planned: list[tuple[GangDemand, Sequence[NodeDemand]]] = []
        self._pauses: dict[str, _Pause] = {}  # by gang
        self._packed: dict[str, tuple[Sequence[WaitingPod], Sequence[NodeDemand] | str]] = {}  # by gang

    async def read(self) -> None:
        """Read the requests and their templates."""
        self._unread = ""
        try:
            # Templates come first: a request that is created between both calls is found, and keeps its templates.
            templates = (await self.api.list(TEMPLATES_PATH, keep=OwnTemplate.from_manifest)).items
            self._templates = tuple(filter(None, templates))
            found = (await self.api.list(PATH, keep=ProvisioningRequest.from_manifest)).items
        except api_errors.NotFound:
            self._unread, found = _MISSING, []
        except api_errors.ClusterError as error:
            logger.warning("Could not read ProvisioningRequests", extra={"err": str(error)})
            self._unread = _failed(error)
            return
        self._found = {one.name: one for one in found}
        self.asked = sum(one.gpus for one in found)

    def provisions(self, gang: str) -> bool:
        """Whether the nodes that a gang asked for start."""
        one = self._found.get(GangDemand(gang).request_name)
        return one is not None and bool(one.provisioned) and not one.has_ended

    async def follow(self, gangs: Sequence[GangDemand], template: Mapping[str, Any], default: str) -> dict[str, str]:
        """Delete what is of no use any more, and decide which gangs `ask`; they count as `asked` already.

        Return the ends of the other gangs' reasons by the pods' UIDs. template, default: as for demand pods. A failed
        call concerns gangs only.
        """
        ends: dict[str, str] = {}
        self._planned = []
        if self._unread and self._unread != _MISSING:
            return _for_all(gangs, self._unread)
        try:
            self.may_exist = bool(self._found or self._templates or (gangs and not self._unread))
            await self._clean_up({gang.request_name for gang in gangs})
            if self._unread:
                return _for_all(gangs, self._unread)
            self._forget_except({gang.name for gang in gangs})
            count, is_blocked = len(self._found), False
            for gang in sorted(gangs, key=self._paused_until):
                one, pause = self._found.get(gang.request_name), self._pauses.get(gang.name)
                # A gang that has failed does not take the bound from pods behind it.
                before = self.asked + (gang.ahead if pause is None else gang.others)
                if one is not None:
                    end = await self._follow(gang, one, template, default)
                elif pause is not None and self.clock() < pause.until and len(gang.pods) >= pause.pods:
                    end = pause.end
                elif count >= MAX_REQUESTS:
                    end = f"{NO_NODES}no more than {MAX_REQUESTS} gangs ask for nodes at a time"
                elif is_blocked or before >= self.max_gpus:
                    end = self._bound + (_AFTER if pause is not None else "")
                elif isinstance(demands := await self._pack(gang, default), str):
                    end = demands
                elif before + (gpus := gang_demand.gpus_of(demands)) > self.max_gpus:
                    # Gangs behind it must not ask without end while it waits for other gangs.
                    is_blocked = before - self.asked + gpus <= self.max_gpus
                    end = self._bound + (_AFTER if pause is not None else "")
                else:
                    self._planned.append((gang, demands))
                    self.asked, count = self.asked + gpus, count + 1
                    continue
                ends |= _for_all([gang], end)
        except api_errors.ClusterError as error:
            logger.warning("Could not delete ProvisioningRequests", extra={"err": str(error)})
            ends = {**_for_all(gangs, _failed(error)), **ends}
        return ends

    async def ask(self, template: Mapping[str, Any], excluded: Callable[[NodeDemand], Sequence[str]]) -> dict[str, str]:
        """Create the requests that were decided on; return the ends of those gangs' reasons, as `follow`."""
        ends: dict[str, str] = {}
        for gang, demands in self._planned:
            gpus = gang_demand.gpus_of(demands)
            pods = (
                demand_pods.manifest(template, demand, resource=self.resource, excluded=excluded(demand))
                for demand in gang_demand.pod_sets(demands)
            )
            templates = [gang_demand.pod_template(pod) for pod in pods]
            names = [made["metadata"]["name"] for made in templates]
            try:
                for made in templates:
                    await self._create(TEMPLATES_PATH, made)
                await self._create(PATH, gang_demand.manifest(gang, demands, names, self.class_name))
            except api_errors.ClusterError as error:
                if not isinstance(error, api_errors.Unavailable):  # otherwise it may be there
                    self.asked -= gpus
                end = self._pause(gang, str(error), REJECTED_SECONDS)
            else:
                logger.info("Asked for the nodes of a gang", extra={"gang": gang.name, "gpus": gpus})
                end = f"; waits for nodes: {counted(gpus, 'GPU')} asked for together"
            ends |= _for_all([gang], end)
        self._planned = []
        return ends

    @property
    def _bound(self) -> str:
        return f"{NO_NODES}no more than {self.max_gpus} GPUs are asked for (--demand-max-gpus)"

    def _paused_until(self, gang: GangDemand) -> float:
        """Return the place of a gang among the others: those that never failed come first."""
        pause = self._pauses.get(gang.name)
        return pause.until if pause is not None else 0.0

    def _forget_except(self, names: Collection[str]) -> None:
        now = self.clock()
        self._packed = {name: known for name, known in self._packed.items() if name in names}
        self._pauses = {
            name: pause for name, pause in self._pauses.items() if name in names or now < pause.until + RETRY_SECONDS
        }

    async def _clean_up(self, wanted: Collection[str]) -> None:
        named = frozenset[str]().union(*(one.sets for one in self._found.values()))
        for made in self._templates:
            if made.name not in named and not made.leaves:
                await self._delete(f"{TEMPLATES_PATH}/{made.name}", made.uid)
        for one in self._found.values():
            if one.name not in wanted:
                await self._withdraw(one)

    async def _pack(self, gang: GangDemand, default: str) -> Sequence[NodeDemand] | str:
        """Return what the gang needs, or why it asks for nothing."""
        known = self._packed.get(gang.name)
        if known is None or known[0] != gang.pods:
            needs = await asyncio.to_thread(gang_demand.needs, gang.pods, self.max_gpus, default, self._bound)
            known = self._packed[gang.name] = gang.pods, needs
        return known[1]

    async def _follow(
        self, gang: GangDemand, one: ProvisioningRequest, template: Mapping[str, Any], default: str
    ) -> str:
        """Return the end of the reason for a request that exists; delete the request if it is of no use any more."""
        now = self.wall_clock()
        if failure := one.failure(now):
            await self._withdraw(one)
            return self._pause(gang, failure, REJECTED_SECONDS if one.said.startswith(_UNREAD) else RETRY_SECONDS)
        if one.provisioned:
            self._pauses.pop(gang.name, None)
            return f"; waits for nodes: {counted(one.gpus, 'GPU')} provisioned"
        demands = await self._pack(gang, default)
        if isinstance(demands, str):
            await self._withdraw(one)
            return demands
        labels = {made.name: made.label for made in self._templates}
        if queue.age_seconds(one.created, now) >= REPLACE_SECONDS and not one.suffices(demands, labels, template):
            await self._withdraw(one)  # the next round asks again
        end = f"; waits for nodes: {counted(one.gpus, 'GPU')} asked for together"
        if not one.is_accepted:
            return f"{end}, by the ProvisioningRequest {contract.DEMAND_NAMESPACE}/{one.name}, not accepted yet"
        return f"{end}: {one.said}" if one.said else end

    def _pause(self, gang: GangDemand, why: str, seconds: float) -> str:
        before = self._pauses.get(gang.name)
        seconds = min(max(seconds, 2 * before.seconds if before else 0.0), RETRY_SECONDS)
        end = f"{NO_NODES}{errors.shortened(why, longest=demand_pods.MAX_WORDS)}"
        self._pauses[gang.name] = _Pause(self.clock() + seconds, seconds, len(gang.pods), end)
        return end

    async def _create(self, path: str, made: Mapping[str, Any]) -> None:
        with contextlib.suppress(api_errors.AlreadyExists):
            await self.api.create(path, made)

    async def _withdraw(self, one: ProvisioningRequest) -> None:
        if not one.leaves:
            await self._delete(f"{PATH}/{one.name}", one.uid)
            logger.info("Withdrew a ProvisioningRequest", extra={"request": one.name})

    async def _delete(self, path: str, uid: str) -> None:
        with contextlib.suppress(api_errors.NotFound, api_errors.Conflict):  # it is gone
            await self.api.delete(path, uid=uid)


def _failed(error: api_errors.ClusterError) -> str:
    return f"{NO_NODES}{errors.shortened(str(error), longest=demand_pods.MAX_WORDS)}"


def _for_all(gangs: Iterable[GangDemand], end: str) -> dict[str, str]:
    return {uid: end for gang in gangs for uid in gang.uids}
