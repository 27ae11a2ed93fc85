"""What gangs ask for by ProvisioningRequests, and whether requests that exist are still of use. Pure.

The pod sets of a request are the demand pods that the gang would have, as PodTemplates: one for each kind, named after
its content, with the label of such a demand pod. A request never changes, so another one replaces it.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors
from gpushare.pod import PodJson
from gpushare.request import Request
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import Deferred, NodeDemand, Packing, Unmet, WaitingPod
from webhook.controllers import queue
from webhook.controllers.demand import demand_pods
from webhook.pods.stored_pod import Pod

ATOMIC: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
UNANSWERED_SECONDS: Final = 300.0  # for so long a request stays that no autoscaler has accepted
VALID_SECONDS: Final = 900  # for so long the autoscaler may look for nodes, and provisioned nodes may take
MAX_POD_SETS: Final = 32  # of one request, by its CRD
NO_NODES: Final = "; asks for no nodes: "
_API: Final = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
_ENDED: Final = ("Failed", "BookingExpired", "CapacityRevoked")  # conditions


@dataclasses.dataclass(frozen=True, slots=True)
class ProvisioningRequest:
    """A request that exists. sets: names of PodTemplates, and how many such pods. provisioned: since when its nodes
    start; empty if they do not. has_ended: the autoscaler does nothing more for it. said: why, or why it has found no
    nodes yet.
    """

    name: str
    uid: str
    gpus: int
    sets: Mapping[str, int]
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
        gpus = str((metadata.get("labels") or {}).get(contract.DEMAND_LABEL) or "")
        return cls(
            name=str(metadata.get("name")),
            uid=str(metadata.get("uid")),
            gpus=int(gpus) if gpus.isdecimal() else 0,
            sets={each["podTemplateRef"]["name"]: int(each["count"]) for each in spec.get("podSets") or ()},
            created=str(metadata.get("creationTimestamp") or ""),
            is_accepted="Accepted" in holding,
            provisioned=str(holding.get("Provisioned", {}).get("lastTransitionTime") or ""),
            has_ended=ended is not None,
            said=errors.shortened(said, longest=demand_pods.MAX_WORDS),
            leaves=metadata.get("deletionTimestamp") is not None,
        )

    def failure(self, now: float) -> str:
        """Return why it is of no use any more; empty while nodes may come."""
        if self.has_ended:
            return f"the autoscaler gave up: {self.said}"
        age = since_created = queue.age_seconds(self.created, now)
        if self.provisioned:  # by the autoscaler's clock, which may be wrong
            age = min(age, queue.age_seconds(self.provisioned, now))
        most = VALID_SECONDS if self.is_accepted or self.provisioned else UNANSWERED_SECONDS
        if age < most and since_created < 2 * VALID_SECONDS:
            return ""
        within = f"within {most / 60:g} minutes"
        if self.provisioned:
            return f"the nodes that the autoscaler provisioned were of no use {within}"
        if self.is_accepted:
            return f"the autoscaler found no nodes {within}" + (f": {self.said}" if self.said else "")
        return f"no autoscaler accepted the ProvisioningRequest {contract.DEMAND_NAMESPACE}/{self.name} {within}"

    def suffices(self, demands: Sequence[NodeDemand], labels: Mapping[str, str], template: Mapping[str, Any]) -> bool:
        """Whether it asks for these nodes or larger ones; `labels`: of the PodTemplates, by name."""
        left = dict(self.sets)
        offered = sorted((_read_label(labels.get(name, "")), name) for name in left)
        for demand in sorted(demands, key=lambda each: (-each.cpu_milli, -each.memory_bytes)):
            key = demand_pods.key_of(demand, template)
            for (made_for, cpu_milli, memory_bytes), name in offered:
                is_enough = demand.cpu_milli <= cpu_milli and demand.memory_bytes <= memory_bytes
                if left[name] and made_for == key and is_enough:
                    left[name] -= 1
                    break
            else:
                return False
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A PodTemplate of a gang. label: of the demand pod that it describes."""

    name: str
    uid: str
    label: str
    leaves: bool

    @classmethod
    def from_manifest(cls, manifest: PodJson) -> OwnTemplate | None:
        """Read a PodTemplate of the namespace; None for the administrator's."""
        metadata = manifest["metadata"]
        label = (metadata.get("labels") or {}).get(contract.DEMAND_LABEL)
        leaves = "deletionTimestamp" in metadata
        return cls(metadata["name"], metadata["uid"], label, leaves) if label is not None else None


@dataclasses.dataclass(frozen=True, slots=True)
class GangDemand:
    """The pods of a gang that lack room. uids: of all that start together.

    ahead: the GPUs that other pods ahead of them in the queue ask for; others: that all other pods ask for. Neither
    counts pods whose nodes may never come.
    """

    name: str
    pods: tuple[WaitingPod, ...] = ()
    uids: Sequence[str] = ()
    ahead: int = 0
    others: int = 0

    @property
    def request_name(self) -> str:
        """The name of the gang's request, by which the next placer finds it."""
        return f"{contract.DEMAND_TEMPLATE}-{_checksum(self.name)}"


@dataclasses.dataclass(frozen=True, slots=True)
class LackingGang:
    """The pods of a gang by UID, in queue order. size: of these, so many have to fit at the same time."""

    all: Sequence[str]
    size: int

    @property
    def members(self) -> Sequence[str]:
        """Those that have to fit together; the others join them."""
        return self.all[: self.size]

    @property
    def joiners(self) -> Sequence[str]:
        return self.all[self.size :]

    def stuck(self, useless: Collection[str]) -> str:
        """Return why it could not start on new nodes; empty if it could. useless: pods that no node would help."""
        if any(uid in useless for uid in self.members):
            return f"{NO_NODES}another node would not help one of the pods of its gang"
        if len(self.all) < self.size:
            return f"{NO_NODES}others of its gang wait for a borrowed GPU, or too many pods wait"
        return ""


def lacking_gangs(lacking: Sequence[tuple[Pod, Request]], together: Mapping[str, int]) -> dict[str, LackingGang]:
    """Return the gangs that have to fit together, by name; together: of the pods' refusals, by UID."""
    found: dict[str, list[str]] = {}
    for pod, _ in lacking:
        if pod.group and together[pod.ref.uid] > 1:
            found.setdefault(f"{pod.ref.namespace}/{pod.group}", []).append(pod.ref.uid)
    return {name: LackingGang(uids, together[uids[0]]) for name, uids in found.items()}


def beside(gangs: Mapping[str, LackingGang], asking: Sequence[WaitingPod], packing: Packing) -> list[GangDemand]:
    """Return what these gangs ask for; `packing`: of the other pods among those that ask."""
    number = {pod.uid: number for number, pod in enumerate(asking)}
    firm = [each for each in packing.demands if not all(uid in packing.deferred for uid in each.uids)]
    found = []
    for name, gang in gangs.items():
        pods = tuple(asking[number[uid]] for uid in gang.members if uid in number)
        if pods:
            ahead = [each for each in firm if number[each.uids[0]] < number[pods[0].uid]]
            found.append(GangDemand(name, pods, gang.members, gpus_of(ahead), gpus_of(firm)))
    return found


def needs(pods: Sequence[WaitingPod], max_gpus: int, default: str, bound: str) -> Sequence[NodeDemand] | str:
    """Return what a gang asks for, or why it asks for nothing; max_gpus, default: as in `node_demand.pack`.

    bound: the reason if it needs too much. Each pod gets the first kind of GPU that fits it. If the gang may not ask
    for those together, it asks for the product that holds all its pods on the fewest GPUs.
    """
    packing = node_demand.pack(pods, max_gpus=max_gpus, default=default)
    if not _refusal(packing, bound):
        return packing.demands
    whole = []
    for product in dict.fromkeys(kind.product for pod in pods for kind in pod.kinds):
        kinds = [tuple(kind for kind in pod.kinds if kind.product in {"", product}) for pod in pods]
        only = [dataclasses.replace(pod, kinds=left) for pod, left in zip(pods, kinds, strict=True)]
        packed = node_demand.pack(only, max_gpus=max_gpus, default=default)
        if Unmet.NO_KIND not in packed.unmet.values():
            whole.append(packed)

    def rank(each: Packing) -> tuple[bool, bool, int]:
        return bool(_refusal(each, bound)), Deferred.OVERSIZED in each.deferred.values(), each.gpus

    best = min(whole, key=rank, default=packing)
    return _refusal(best, bound) or best.demands


def _refusal(packing: Packing, bound: str) -> str:
    """Return why a gang with this packing asks for nothing; empty if it may. bound: as for `needs`."""
    if Unmet.NO_KIND in packing.unmet.values():
        return f"{NO_NODES}it fits on no GPU that is known (--demand-products), even if that is empty"
    if packing.unmet:
        return f"{bound}, and the gang needs more"
    if len(pod_sets(packing.demands)) > MAX_POD_SETS:
        return f"{NO_NODES}it needs more than {MAX_POD_SETS} kinds of nodes, and a ProvisioningRequest has no more"
    selected: dict[str, str] = {}
    for demand in packing.demands:
        for key, value in demand_pods.selecting(demand.selection, {}).get("nodeSelector", {}).items():
            if selected.setdefault(key, value) != value:
                both = f"its pods select nodes with {key}={selected[key]} and with {key}={value}"
                return f"{NO_NODES}{both}, and an autoscaler starts a gang's nodes from one group"
    if len({demand.product for demand in packing.demands} - {""}) > 1:
        return f"{NO_NODES}no known product holds all its pods, and an autoscaler starts a gang's nodes from one group"
    return ""


def manifest(gang: GangDemand, demands: Sequence[NodeDemand], names: Sequence[str], class_name: str) -> dict[str, Any]:
    """Return the request to create; `names`: of the PodTemplates, as `pod_sets` orders them."""
    sets = zip(names, pod_sets(demands).values(), strict=True)
    spec = {
        "provisioningClassName": class_name,
        "podSets": [{"podTemplateRef": {"name": name}, "count": count} for name, count in sets],
        **({"parameters": {"ValidUntilSeconds": str(VALID_SECONDS)}} if class_name == ATOMIC else {}),
    }
    labels = {contract.DEMAND_LABEL: str(gpus_of(demands))}
    return {**_API, "metadata": {"name": gang.request_name, "labels": labels}, "spec": spec}


def pod_template(pod: PodJson) -> dict[str, Any]:
    """Return the PodTemplate for a demand pod."""
    metadata = pod["metadata"]
    made = {"metadata": {key: metadata[key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    name = f"{contract.DEMAND_TEMPLATE}-{_checksum(json.dumps(made, sort_keys=True))}"
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name, "labels": metadata["labels"]},
        "template": made,
    }


def pod_sets(demands: Sequence[NodeDemand]) -> Mapping[NodeDemand, int]:
    """Return the different demands, and how many there are of each."""
    return collections.Counter(dataclasses.replace(demand, uids=()) for demand in demands)


def gpus_of(demands: Sequence[NodeDemand]) -> int:
    return sum(demand.gpus for demand in demands)


def _read_label(label: str) -> tuple[str, int, int]:
    """Return the key, the milli-CPUs and the bytes of a demand pod with this label."""
    key, cpu_milli, memory_bytes, *_ = (*label.split("-"), "", "")
    is_whole = cpu_milli.isdecimal() and memory_bytes.isdecimal()  # another client may have changed it
    return (key, int(cpu_milli), int(memory_bytes)) if is_whole else ("", 0, 0)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
