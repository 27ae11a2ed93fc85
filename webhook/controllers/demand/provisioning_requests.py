"""ProvisioningRequests: the nodes of a gang, asked of Cluster Autoscaler together, so that all of them start or none.

Each gang that lacks room has at most one, under a name that follows from the gang, so the next placer continues with
it. Its pod sets are the demand pods that the gang would have, as PodTemplates that the request owns. A request never
changes: when the gang needs other GPUs before nodes start, or its booking has expired, it is deleted, and the next
round asks again. A failed request stays for a while, so that its reason can be read and the autoscaler is not pressed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors
from gpushare.cluster import api_errors
from gpushare.pod import PodJson
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
RETRY_SECONDS: Final = 300.0  # after a failure
UNANSWERED_SECONDS: Final = 60.0  # after so long, a request that no autoscaler has accepted takes nothing from others
VALID_SECONDS: Final = 900  # for so long Cluster Autoscaler tries by itself, and provisioned nodes may take
MAX_WORDS: Final = 300  # characters quoted from the autoscaler or the API server
_API: Final = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}


class State(enum.Enum):
    """What the autoscaler has said of a request."""

    NEW = "new"  # nothing
    ACCEPTED = "accepted"
    PROVISIONED = "provisioned"  # the nodes start, and are booked for ten minutes
    EXPIRED = "expired"  # they are booked no more
    FAILED = "failed"


_STATES: Final = {  # by condition, the strongest first
    "Failed": State.FAILED,
    "BookingExpired": State.EXPIRED,
    "CapacityRevoked": State.EXPIRED,
    "Provisioned": State.PROVISIONED,
    "Accepted": State.ACCEPTED,
}


@dataclasses.dataclass(frozen=True, slots=True)
class ProvisioningRequest:
    """A request that exists. size: as `_size_of` writes it. since: when it came into its state. said: by whom and why
    it failed, or has not succeeded yet.
    """

    name: str
    uid: str
    size: str
    gpus: int
    state: State
    since: str
    said: str
    leaves: bool

    @classmethod
    def from_manifest(cls, manifest: PodJson) -> ProvisioningRequest:
        """Read a request of the namespace."""
        metadata, status = manifest.get("metadata") or {}, manifest.get("status") or {}
        conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
        holding = {kind: each for kind, each in conditions.items() if each.get("status") == "True"}
        reached = next((kind for kind in _STATES if kind in holding), "")
        telling = holding.get("Failed") or conditions.get("Provisioned") or {}
        size = str((metadata.get("labels") or {}).get(contract.DEMAND_LABEL) or "")
        gpus = size.partition("-")[0]
        return cls(
            name=str(metadata.get("name")),
            uid=str(metadata.get("uid")),
            size=size,
            gpus=int(gpus) if gpus.isdecimal() else 0,
            state=_STATES.get(reached, State.NEW),
            since=str(holding.get(reached, {}).get("lastTransitionTime") or metadata.get("creationTimestamp") or ""),
            said=": ".join(filter(None, (str(telling.get(key) or "") for key in ("reason", "message")))),
            leaves=metadata.get("deletionTimestamp") is not None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class GangDemand:
    """The pods of a gang that lack room. ahead: the GPUs that other pods ahead of them in the queue ask for."""

    name: str
    pods: tuple[WaitingPod, ...]
    ahead: int

    @property
    def request_name(self) -> str:
        """The name of the gang's request."""
        return f"{contract.DEMAND_TEMPLATE}-{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"


@dataclasses.dataclass(eq=False)
class GangRequests:
    """Keeps the ProvisioningRequests. resource, max_gpus: of the demand controller's settings."""

    api: DemandClient
    class_name: str
    resource: str
    max_gpus: int
    wall_clock: Callable[[], float]
    may_exist: bool = True

    async def reconcile(
        self,
        gangs: Sequence[GangDemand],
        template: Mapping[str, Any],
        default: str,
        excluded: Callable[[NodeDemand], Sequence[str]],
    ) -> tuple[dict[str, str], int]:
        """Create and delete requests; return the ends of the pods' reasons by UID, and how many GPUs are asked for.

        template, default, excluded: as for demand pods.
        """
        ends: dict[str, str] = {}
        if not gangs and not self.may_exist:
            return ends, 0
        try:
            found = (await self.api.list(PATH, keep=ProvisioningRequest.from_manifest)).items
        except api_errors.NotFound:
            self.may_exist = False
            end = "; asks for no nodes: the cluster has no ProvisioningRequest (autoscaling.x-k8s.io/v1): install its "
            return _for_all(gangs, f"{end}CRD, or remove --demand-provisioning-class"), 0
        except api_errors.Forbidden as error:  # after an upgrade of the image alone
            return _for_all(gangs, _rejected(error)), 0
        there = {one.name: one for one in found}
        wanted = {gang.request_name for gang in gangs}
        asked = count = 0
        for one in found:
            if one.name not in wanted:
                await self._delete(one)
                continue
            count += 1
            asked += one.gpus if self._may_start_nodes(one) else 0
        for gang in gangs:
            mine = there.get(gang.request_name)
            demands = await asyncio.to_thread(self._pack, gang, default)
            if isinstance(demands, str):
                if mine is not None and mine.state is not State.PROVISIONED:
                    await self._delete(mine)
                end = f"; asks for no nodes: {demands}"
            elif mine is not None:
                end = await self._follow(mine, demands)
            elif count >= MAX_REQUESTS:
                end = f"; asks for no nodes: no more than {MAX_REQUESTS} gangs ask for nodes at a time"
            elif gang.ahead + asked + _gpus(demands) > self.max_gpus:
                end = f"; asks for no nodes: no more than {self.max_gpus} GPUs are asked for (--demand-max-gpus)"
            else:
                end = await self._create(gang, demands, template, excluded)
                asked, count = asked + _gpus(demands), count + 1
            ends |= _for_all([gang], end)
        self.may_exist = bool(found) or count > 0
        return ends, asked

    def _pack(self, gang: GangDemand, default: str) -> tuple[NodeDemand, ...] | str:
        """Return what the gang needs, or why it asks for nothing."""
        packing = node_demand.pack(gang.pods, max_gpus=self.max_gpus, default=default)
        if Unmet.NO_KIND in packing.unmet.values():
            return "it fits on no GPU that is known (--demand-products), even if that is empty"
        if packing.unmet:
            return f"no more than {self.max_gpus} GPUs are asked for (--demand-max-gpus), and the gang needs more"
        if len(_pod_sets(packing.demands)) > MAX_POD_SETS:
            return f"it needs more than {MAX_POD_SETS} different nodes, and a ProvisioningRequest has no more"
        return packing.demands

    async def _follow(self, one: ProvisioningRequest, demands: Sequence[NodeDemand]) -> str:
        """Return the end of the reason for a request that exists; delete the request if it is of no use any more."""
        age = self._age_seconds(one)
        if one.state is State.FAILED:
            if age >= RETRY_SECONDS:
                await self._delete(one)
            return f"; asks for no nodes: the autoscaler failed: {errors.shortened(one.said, longest=MAX_WORDS)}"
        if one.state is State.PROVISIONED and age < VALID_SECONDS:
            return f"; waits for nodes: {_counted(one.gpus)} provisioned"
        if one.size != _size_of(demands) or one.state in {State.PROVISIONED, State.EXPIRED}:
            await self._delete(one)
        end = f"; waits for nodes: {_counted(_gpus(demands))} asked for together"
        if one.state is State.NEW:
            return f"{end}, by the ProvisioningRequest {contract.DEMAND_NAMESPACE}/{one.name}, not accepted yet"
        return f"{end}: {errors.shortened(one.said, longest=MAX_WORDS)}" if one.said else end

    def _may_start_nodes(self, one: ProvisioningRequest) -> bool:
        is_unanswered = one.state is State.NEW and self._age_seconds(one) >= UNANSWERED_SECONDS
        return one.state is not State.FAILED and not is_unanswered

    def _age_seconds(self, one: ProvisioningRequest) -> float:
        return queue.age_seconds(one.since, self.wall_clock())

    async def _create(
        self,
        gang: GangDemand,
        demands: Sequence[NodeDemand],
        template: Mapping[str, Any],
        excluded: Callable[[NodeDemand], Sequence[str]],
    ) -> str:
        sets, series = _pod_sets(demands), secrets.token_hex(3)
        names = [f"{gang.request_name}-{series}-{number}" for number in range(len(sets))]
        try:
            made = ProvisioningRequest.from_manifest(
                await self.api.create(PATH, manifest(gang, demands, names, self.class_name))
            )
        except api_errors.AlreadyExists:
            return ""  # the next round reads it
        except (api_errors.Forbidden, api_errors.Invalid) as error:
            return _rejected(error)
        try:
            for name, demand in zip(names, sets, strict=True):
                pod = demand_pods.manifest(template, demand, resource=self.resource, excluded=excluded(demand))
                await self.api.create(TEMPLATES_PATH, pod_template(pod, name, made))
        except api_errors.ClusterError as error:  # without its templates, the request would wait forever
            await self._delete(made)
            return _rejected(error)
        logger.info("Asked for the nodes of a gang", extra={"gang": gang.name, "gpus": _gpus(demands)})
        return f"; waits for nodes: {_counted(_gpus(demands))} asked for together"

    async def _delete(self, one: ProvisioningRequest) -> None:
        if one.leaves:
            return
        try:
            await self.api.delete(f"{PATH}/{one.name}", uid=one.uid)
        except (api_errors.NotFound, api_errors.Conflict):
            return  # it is gone
        logger.info("Withdrew a ProvisioningRequest", extra={"request": one.name, "state": one.state.value})


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


def pod_template(pod: PodJson, name: str, owner: ProvisioningRequest) -> dict[str, Any]:
    """Return the PodTemplate for a demand pod, which ends with the request."""
    metadata = pod["metadata"]
    owned = {**_API, "name": owner.name, "uid": owner.uid}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name, "labels": metadata["labels"], "ownerReferences": [owned]},
        "template": {"metadata": {key: metadata[key] for key in ("labels", "annotations")}, "spec": pod["spec"]},
    }


def _pod_sets(demands: Sequence[NodeDemand]) -> dict[NodeDemand, int]:
    """Return the different demands, and how many there are of each."""
    counts: dict[NodeDemand, int] = {}
    for demand in demands:
        alike = dataclasses.replace(demand, uids=())
        counts[alike] = counts.get(alike, 0) + 1
    return counts


def _size_of(demands: Sequence[NodeDemand]) -> str:
    """Return the number of GPUs, and a checksum of what is asked for."""
    text = repr(sorted((repr(demand), count) for demand, count in _pod_sets(demands).items()))
    return f"{_gpus(demands)}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _gpus(demands: Sequence[NodeDemand]) -> int:
    return sum(demand.gpus for demand in demands)


def _counted(gpus: int) -> str:
    return f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}"


def _rejected(error: api_errors.ClusterError) -> str:
    return f"; asks for no nodes: {errors.shortened(str(error), longest=MAX_WORDS)}"


def _for_all(gangs: Sequence[GangDemand], end: str) -> dict[str, str]:
    return {pod.uid: end for gang in gangs for pod in gang.pods}
