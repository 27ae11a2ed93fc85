"""ProvisioningRequests: the nodes of a gang, asked of Cluster Autoscaler together, so that all of them start or none.

Each gang that lacks room has at most one, under a name that follows from the gang, so the next placer continues with
it. Its pod sets are the demand pods that the gang would have, as PodTemplates, which must exist before the autoscaler
reads the request. A template is named after its content, and deleted once no request names it. A request never changes,
and counts until it is deleted. When it has failed or lasted too long, it is deleted, and its gang pauses.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors
from gpushare.cluster import api_errors
from gpushare.pod import PodJson
from gpushare.quantity import counted
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import NodeDemand, Unmet, WaitingPod
from webhook.controllers import queue
from webhook.controllers.demand import demand_pods
from webhook.controllers.demand.demand_client import DemandClient

logger = logging.getLogger(__name__)

PATH: Final = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{contract.DEMAND_NAMESPACE}/provisioningrequests"
TEMPLATES_PATH: Final = f"/api/v1/namespaces/{contract.DEMAND_NAMESPACE}/podtemplates"
ATOMIC: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
MAX_REQUESTS: Final = 4  # at a time; the quota of the component has the same bound
MAX_POD_SETS: Final = 32  # of one request, by its CRD
REJECTED_SECONDS: Final = 10.0  # of the first pause after the API server rejected something; doubled each time
RETRY_SECONDS: Final = 300.0  # of the pause after a failure of the autoscaler, and of the longest pause
REPLACE_SECONDS: Final = 60.0  # for so long a request stays that asks for too little
UNANSWERED_SECONDS: Final = 300.0  # for so long a request stays that no autoscaler has accepted
VALID_SECONDS: Final = 900  # for so long the autoscaler may look for nodes, and provisioned nodes may take
MAX_WORDS: Final = 300  # characters quoted from the autoscaler or the API server
_API: Final = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
_ENDED: Final = ("Failed", "BookingExpired", "CapacityRevoked")  # conditions


@dataclasses.dataclass(frozen=True, slots=True)
class ProvisioningRequest:
    """A request that exists. size: as `_size_of` writes it. provisioned: since when its nodes start; empty if they do
    not. has_ended: the autoscaler does nothing more for it. said: by whom and why it failed, or has not succeeded yet.
    """

    name: str
    uid: str
    size: str
    gpus: int
    templates: frozenset[str]
    created: str
    is_accepted: bool
    provisioned: str
    has_ended: bool
    said: str
    leaves: bool

    @classmethod
    def from_manifest(cls, manifest: PodJson) -> ProvisioningRequest:
        """Read a request of the namespace."""
        metadata, spec, status = (manifest.get(key) or {} for key in ("metadata", "spec", "status"))
        conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
        holding = {kind: each for kind, each in conditions.items() if each.get("status") == "True"}
        ended = next((holding[kind] for kind in _ENDED if kind in holding), None)
        telling = ended or conditions.get("Provisioned") or {}
        said = ": ".join(filter(None, (str(telling.get(key) or "") for key in ("reason", "message"))))
        size = str((metadata.get("labels") or {}).get(contract.DEMAND_LABEL) or "")
        gpus = size.partition("-")[0]
        return cls(
            name=str(metadata.get("name")),
            uid=str(metadata.get("uid")),
            size=size,
            gpus=int(gpus) if gpus.isdecimal() else 0,
            templates=frozenset(each["podTemplateRef"]["name"] for each in spec.get("podSets") or ()),
            created=str(metadata.get("creationTimestamp") or ""),
            is_accepted="Accepted" in holding,
            provisioned=str(holding.get("Provisioned", {}).get("lastTransitionTime") or ""),
            has_ended=ended is not None,
            said=errors.shortened(said, longest=MAX_WORDS),
            leaves=metadata.get("deletionTimestamp") is not None,
        )

    def failure(self, now: float) -> str:
        """Return why it is of no use any more; empty while nodes may come."""
        if self.has_ended:
            return f"the autoscaler failed: {self.said}"
        most = VALID_SECONDS if self.is_accepted or self.provisioned else UNANSWERED_SECONDS
        if queue.age_seconds(self.provisioned or self.created, now) < most:
            return ""
        within = f"within {most / 60:g} minutes"
        if self.provisioned:
            return f"the nodes that the autoscaler provisioned were of no use {within}"
        if self.is_accepted:
            return f"the autoscaler found no nodes {within}" + (f": {self.said}" if self.said else "")
        return f"no autoscaler accepted the ProvisioningRequest {contract.DEMAND_NAMESPACE}/{self.name} {within}"

    def suffices(self, demands: Sequence[NodeDemand]) -> bool:
        """Whether it asks for enough GPUs of these nodes."""
        return self.gpus >= _gpus(demands) and self.size.partition("-")[2] == _size_of(demands).partition("-")[2]


@dataclasses.dataclass(frozen=True, slots=True)
class GangDemand:
    """The pods of a gang that lack room. ahead: the GPUs that other pods ahead of them in the queue ask for."""

    name: str
    pods: tuple[WaitingPod, ...]
    ahead: int

    @property
    def request_name(self) -> str:
        """The name of the gang's request."""
        return f"{contract.DEMAND_TEMPLATE}-{_checksum(self.name)}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Pause:
    """Why and until when a gang asks for nothing, unless it asks for fewer pods; it stays after that, for the next."""

    until: float
    seconds: float
    pods: int
    end: str


@dataclasses.dataclass(eq=False)
class GangRequests:
    """Keeps the ProvisioningRequests. resource, max_gpus: of the demand controller's settings."""

    api: DemandClient
    class_name: str
    resource: str
    max_gpus: int
    wall_clock: Callable[[], float]
    may_exist: bool = True

    def __post_init__(self) -> None:
        self._asked = 0  # GPUs, as far as is known
        self._pauses: dict[str, _Pause] = {}  # by gang
        self._packed: dict[str, tuple[Sequence[WaitingPod], Sequence[NodeDemand] | str]] = {}  # by gang

    async def reconcile(
        self,
        gangs: Sequence[GangDemand],
        template: Mapping[str, Any],
        default: str,
        excluded: Callable[[NodeDemand], Sequence[str]],
    ) -> tuple[dict[str, str], int]:
        """Create and delete requests; return the ends of the pods' reasons by UID, and how many GPUs are asked for.

        template, default, excluded: as for demand pods. A failed call concerns gangs only.
        """
        ends: dict[str, str] = {}
        if not gangs and not self.may_exist:
            return ends, 0
        try:
            found = (await self.api.list(PATH, keep=ProvisioningRequest.from_manifest)).items
            self._asked = sum(one.gpus for one in found)
            templates = (await self.api.list(TEMPLATES_PATH, keep=_own_template)).items
            self.may_exist = bool(gangs or found or any(templates))
            await self._clean_up(found, {gang.request_name for gang in gangs}, filter(None, templates))
            there, now = {one.name: one for one in found}, self.wall_clock()
            names = {gang.name for gang in gangs}
            self._packed = {name: known for name, known in self._packed.items() if name in names}
            self._pauses = {
                name: pause
                for name, pause in self._pauses.items()
                if name in names or now < pause.until + RETRY_SECONDS
            }
            count = len(found)
            for gang in sorted(gangs, key=self._paused_until):
                mine, pause = there.get(gang.request_name), self._pauses.get(gang.name)
                if mine is not None:
                    end = await self._follow(gang, mine, default, now)
                elif pause is not None and now < pause.until and len(gang.pods) >= pause.pods:
                    end = pause.end
                elif count >= MAX_REQUESTS:
                    end = f"; asks for no nodes: no more than {MAX_REQUESTS} gangs ask for nodes at a time"
                elif gang.ahead + self._asked >= self.max_gpus:
                    end = self._bound
                else:
                    before = self._asked
                    end = await self._ask(gang, template, default, excluded)
                    count += self._asked > before
                ends |= _for_all([gang], end)
        except api_errors.NotFound:
            self.may_exist, self._asked = False, 0
            end = "; asks for no nodes: the cluster has no ProvisioningRequest (autoscaling.x-k8s.io/v1): install its "
            return _for_all(gangs, f"{end}CRD, or remove --demand-provisioning-class"), 0
        except api_errors.ClusterError as error:
            logger.warning("Could not read or write ProvisioningRequests", extra={"err": str(error)})
            ends = {**_for_all(gangs, _rejected(error)), **ends}
        return ends, self._asked

    @property
    def _bound(self) -> str:
        return f"; asks for no nodes: no more than {self.max_gpus} GPUs are asked for (--demand-max-gpus)"

    def _paused_until(self, gang: GangDemand) -> float:
        """Return the place of a gang among the others: those that never failed come first."""
        pause = self._pauses.get(gang.name)
        return pause.until if pause is not None else 0.0

    async def _clean_up(
        self, found: Sequence[ProvisioningRequest], wanted: Collection[str], templates: Iterable[tuple[str, str]]
    ) -> None:
        named = frozenset[str]().union(*(one.templates for one in found))
        for name, uid in templates:
            if name not in named:
                await self._delete(f"{TEMPLATES_PATH}/{name}", uid)
        for one in found:
            if one.name not in wanted:
                await self._withdraw(one)

    async def _pack(self, gang: GangDemand, default: str) -> Sequence[NodeDemand] | str:
        """Return what the gang needs, or why it asks for nothing."""
        known = self._packed.get(gang.name)
        if known is None or known[0] != gang.pods:
            packing = await asyncio.to_thread(node_demand.pack, gang.pods, max_gpus=self.max_gpus, default=default)
            known = self._packed[gang.name] = gang.pods, self._checked(packing)
        return known[1]

    def _checked(self, packing: node_demand.Packing) -> Sequence[NodeDemand] | str:
        if Unmet.NO_KIND in packing.unmet.values():
            return "; asks for no nodes: it fits on no GPU that is known (--demand-products), even if that is empty"
        if packing.unmet:
            return f"{self._bound}, and the gang needs more"
        if len(_pod_sets(packing.demands)) > MAX_POD_SETS:
            end = f"; asks for no nodes: it needs more than {MAX_POD_SETS} different nodes"
            return f"{end}, and a ProvisioningRequest has no more"
        return packing.demands

    async def _follow(self, gang: GangDemand, one: ProvisioningRequest, default: str, now: float) -> str:
        """Return the end of the reason for a request that exists; delete the request if it is of no use any more."""
        if failure := one.failure(now):
            await self._withdraw(one)
            return self._pause(gang, failure, RETRY_SECONDS)
        if one.provisioned:
            self._pauses.pop(gang.name, None)
            return f"; waits for nodes: {counted(one.gpus, 'GPU')} provisioned"
        demands = await self._pack(gang, default)
        if isinstance(demands, str):
            await self._withdraw(one)
            return demands
        if queue.age_seconds(one.created, now) >= REPLACE_SECONDS and not one.suffices(demands):
            await self._withdraw(one)  # the next round asks again
        end = f"; waits for nodes: {counted(one.gpus, 'GPU')} asked for together"
        if not one.is_accepted:
            return f"{end}, by the ProvisioningRequest {contract.DEMAND_NAMESPACE}/{one.name}, not accepted yet"
        return f"{end}: {one.said}" if one.said else end

    async def _ask(
        self,
        gang: GangDemand,
        template: Mapping[str, Any],
        default: str,
        excluded: Callable[[NodeDemand], Sequence[str]],
    ) -> str:
        demands = await self._pack(gang, default)
        if isinstance(demands, str):
            return demands
        if gang.ahead + self._asked + _gpus(demands) > self.max_gpus:
            return self._bound
        pods = (
            demand_pods.manifest(template, demand, resource=self.resource, excluded=excluded(demand))
            for demand in _pod_sets(demands)
        )
        templates = [pod_template(pod) for pod in pods]
        try:
            for made in templates:
                await self._create(TEMPLATES_PATH, made)
            names = [made["metadata"]["name"] for made in templates]
            await self._create(PATH, manifest(gang, demands, names, self.class_name))
        except api_errors.ClusterError as error:
            if isinstance(error, api_errors.Unavailable):
                self._asked += _gpus(demands)  # it may be there
            return self._pause(gang, str(error), REJECTED_SECONDS)
        self._asked += _gpus(demands)
        logger.info("Asked for the nodes of a gang", extra={"gang": gang.name, "gpus": _gpus(demands)})
        return f"; waits for nodes: {counted(_gpus(demands), 'GPU')} asked for together"

    def _pause(self, gang: GangDemand, why: str, seconds: float) -> str:
        before = self._pauses.get(gang.name)
        seconds = min(max(seconds, 2 * before.seconds if before else 0.0), RETRY_SECONDS)
        end = f"; asks for no nodes: {errors.shortened(why, longest=MAX_WORDS)}"
        self._pauses[gang.name] = _Pause(self.wall_clock() + seconds, seconds, len(gang.pods), end)
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


def manifest(gang: GangDemand, demands: Sequence[NodeDemand], names: Sequence[str], class_name: str) -> dict[str, Any]:
    """Return the request to create; `names`: of the PodTemplates, as `_pod_sets` orders them."""
    sets = zip(names, _pod_sets(demands).values(), strict=True)
    spec = {
        "provisioningClassName": class_name,
        "podSets": [{"podTemplateRef": {"name": name}, "count": count} for name, count in sets],
        **({"parameters": {"ValidUntilSeconds": str(VALID_SECONDS)}} if class_name == ATOMIC else {}),
    }
    labels = {contract.DEMAND_LABEL: _size_of(demands)}
    return {**_API, "metadata": {"name": gang.request_name, "labels": labels}, "spec": spec}


def pod_template(pod: PodJson) -> dict[str, Any]:
    """Return the PodTemplate for a demand pod, named after its content."""
    metadata = pod["metadata"]
    made = {"metadata": {key: metadata[key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    name = f"{contract.DEMAND_TEMPLATE}-{_checksum(json.dumps(made, sort_keys=True))}"
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name, "labels": metadata["labels"]},
        "template": made,
    }


def _own_template(made: PodJson) -> tuple[str, str] | None:
    """Return name and UID of a PodTemplate of gangs, and nothing for the administrator's."""
    metadata = made["metadata"]
    return (metadata["name"], metadata["uid"]) if contract.DEMAND_LABEL in (metadata.get("labels") or {}) else None


def _pod_sets(demands: Sequence[NodeDemand]) -> dict[NodeDemand, int]:
    """Return the different demands, and how many there are of each."""
    return collections.Counter(dataclasses.replace(demand, uids=()) for demand in demands)


def _size_of(demands: Sequence[NodeDemand]) -> str:
    """Return the number of GPUs, and a checksum of the nodes that should have them."""
    return f"{_gpus(demands)}-{_checksum(repr(sorted({(demand.selection, demand.product) for demand in demands})))}"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _gpus(demands: Sequence[NodeDemand]) -> int:
    return sum(demand.gpus for demand in demands)


def _rejected(error: api_errors.ClusterError) -> str:
    return f"; asks for no nodes: {errors.shortened(str(error), longest=MAX_WORDS)}"


def _for_all(gangs: Sequence[GangDemand], end: str) -> dict[str, str]:
    return {pod.uid: end for gang in gangs for pod in gang.pods}
