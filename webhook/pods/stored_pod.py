"""Pod: a stored pod that asks for a share, as a value. The API server's JSON is read here, once, and goes no further.

A cluster has many, so that little is kept of each, and of one that does not wait least. In that JSON null is as good as
absent. What is written on a pod may be forged: the API server holds users to what they may write (config/base/policy),
and `may_hold` is for the pods that came by while it did not.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.allocation import PodRef
from gpushare.nodefilters import share_resources
from gpushare.request import Request
from webhook.pods import gate_reason, mutation

# Of a pod's spec, and of each container, what decides where it can run.
FITNESS_KEYS: Final = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
    "hostNetwork",
    "overhead",
    "resources",
)
CONTAINER_KEYS: Final = ("resources", "ports", "restartPolicy")
NO_MANIFEST: Final[pod.PodJson] = types.MappingProxyType({})
_LISTED: Final = ("containers", "initContainers")
_METADATA_KEYS: Final = ("name", "namespace", "uid", "resourceVersion", "labels")
_MAX_NAME: Final = 64  # no container has so long a one
_MAX_SIZE_DIGITS: Final = 4
_CHANGED: Final = (
    "its gpushare.io annotations no longer agree with the resources it was admitted with: "
    "delete the pod and recreate it"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """What is ever looked at of a pod.

    `created`: as the API server writes it, such texts sort by time. `node`: that it is bound to. `is_exempt`: the
    webhook is never asked about it. `has_resources`: with a share come resources, which cannot change and which quotas
    count. `has_started`: a kubelet has said something of its containers. `unschedulable`: the scheduler's own words, if
    it cannot bind it where it was placed. `group`: empty for a pod by itself. `containers`: names, ordinary ones first.
    `annotations`: gpushare's alone. `request`: what they ask for, or the sentence that says why that cannot be said.
    `manifest`: what node filters look at, of a gated pod alone.
    """

    ref: PodRef
    version: str
    phase: str
    created: str
    priority: int
    leaves: bool
    is_gated: bool
    foreign_gates: tuple[str, ...]
    node: str
    is_exempt: bool
    has_resources: bool
    has_started: bool
    unschedulable: str | None
    controller: pod.Controller | None
    group: str
    group_size: int
    containers: tuple[str, ...]
    annotations: Mapping[str, str]
    request: Request | str
    manifest: pod.PodJson

    @classmethod
    def of(cls, item: pod.PodJson) -> Pod:
        """Read a pod as the API server has it."""
        metadata, spec, status = (item.get(key) or {} for key in ("metadata", "spec", "status"))
        namespace, name = pod.namespaced_name(item)
        everything = pod.annotations_of(item)
        annotations = {key: text for key, text in everything.items() if key.startswith(contract.PREFIX)}
        is_gated = contract.SCHEDULING_GATE in pod.gates(item)
        size = _group_size(str(annotations.get(contract.GROUP_SIZE) or ""))
        return cls(
            ref=PodRef(namespace, name, pod.uid(item)),
            version=str(metadata.get("resourceVersion") or ""),
            phase=str(status.get("phase") or ""),
            created=str(metadata.get("creationTimestamp") or ""),
            priority=pod.priority(item),
            leaves=bool(metadata.get("deletionTimestamp")),
            is_gated=is_gated,
            foreign_gates=gate_reason.foreign_gates(item),
            node=str(spec.get("nodeName") or ""),
            is_exempt=namespace in contract.EXEMPT_NAMESPACES or contract.MIRROR_ANNOTATION in everything,
            has_resources=pod.has_share_resources(item),
            has_started=any(status.get(key) for key in ("containerStatuses", "initContainerStatuses")),
            unschedulable=_unschedulable(item),
            controller=pod.controller(item),
            group=str(annotations.get(contract.GROUP) or "").strip() if size > 1 else "",
            group_size=size,
            containers=pod.container_names(item),
            annotations=annotations,
            request=_request(item, is_gated=is_gated),
            manifest=_manifest(item, annotations) if is_gated else NO_MANIFEST,
        )

    @property
    def allocation_id(self) -> str:
        """The allocation that it names; empty for none."""
        return self.annotations.get(contract.ALLOCATION) or ""

    @property
    def placed_on(self) -> str:
        """The node that it says it was placed on; empty for none."""
        return self.annotations.get(contract.NODE) or ""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good and uses nothing any more."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def waits(self) -> bool:
        """Whether it is gated by us, and there for us to place."""
        return self.is_gated and not self.leaves and not self.has_ended and not self.is_exempt

    @property
    def is_stuck(self) -> bool:
        """Whether it was placed, stays, and cannot be bound."""
        return self.unschedulable is not None and not self.leaves

    @property
    def may_run(self) -> bool:
        """Whether it can have been given a share, and runs or may yet: finalizers keep what leaves."""
        return not self.is_exempt and self.has_resources and (self.has_started or not self.leaves)

    @property
    def may_hold(self) -> bool:
        """Whether a share is kept for it. One that leaves and is on no node will never be on one."""
        return self.may_run or (not self.is_exempt and self.has_resources and bool(self.node))

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"/api/v1/namespaces/{self.ref.namespace}/pods/{self.ref.name}"

    @property
    def reference(self) -> Mapping[str, str]:
        """What an Event is about."""
        return {"apiVersion": "v1", "kind": "Pod", **dataclasses.asdict(self.ref)}


def has_share(item: pod.PodJson) -> bool:
    """Whether it bears the label that the webhook puts on every pod of ours."""
    labels = (item.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(contract.SHARE_LABEL) == contract.SHARE_LABEL_VALUE)


def _request(item: pod.PodJson, *, is_gated: bool) -> Request | str:
    try:
        request = requests.parse(item)
    except errors.RequestError as error:
        return str(error)
    # Of one that was placed the annotations may be changed, which asks for another amount.
    return _CHANGED if is_gated and not _agrees(item, request) else request


def _agrees(item: pod.PodJson, request: Request) -> bool:
    """Whether the resources, which cannot change, are still those of the annotations, which can."""
    expected = share_resources.by_container(request)
    return all(
        mutation.has_resources(container, expected.get(str(container.get("name")), {}))
        for container in (*pod.containers(item), *pod.init_containers(item))
    )


def _unschedulable(item: pod.PodJson) -> str | None:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if (
        spec.get("nodeName")  # as nearly all have
        or contract.ALLOCATION not in pod.annotations_of(item)
        or pod.gates(item)
        or pod.is_terminal(item)
        or status.get("nominatedNodeName")  # others are made to leave for it, and have their grace periods
    ):
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "") if condition.get("reason") == "Unschedulable" else None
    return None


def _group_size(text: str) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_SIZE_DIGITS else 0


def _manifest(item: pod.PodJson, annotations: Mapping[str, str]) -> pod.PodJson:
    """What decides where it can run, and what opens its gate. Others' annotations may be a quarter of a megabyte."""
    metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
    kept = _some(metadata, _METADATA_KEYS)
    if everything := pod.annotations_of(item):
        default = everything.get(pod.DEFAULT_CONTAINER) or ""
        kept["annotations"] = {**annotations, **({pod.DEFAULT_CONTAINER: default[:_MAX_NAME]} if default else {})}
    if owners := [owner for owner in metadata.get("ownerReferences") or [] if owner.get("controller")]:
        kept["ownerReferences"] = _without_nulls(owners)
    small = _some(spec, (*FITNESS_KEYS, "schedulingGates"))
    for listed in _LISTED:
        if spec.get(listed):
            small[listed] = [_some(container, ("name", *CONTAINER_KEYS)) for container in spec[listed]]
    return {"metadata": kept, "spec": small}


def _some(whole: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: _without_nulls(whole[key]) for key in keys if whole.get(key) is not None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
