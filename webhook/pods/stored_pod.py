"""Pod: a stored pod with a share, as a value. The API server's JSON is read here, once.

A cluster has many pods, so little is kept of each, and least of those that do not wait. In the JSON, null counts as
absent. A pod's annotations may be forged: the API server's policies (config/base/policy) restrict what users can write,
and `may_hold` covers pods that were created while the policies were missing.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract, errors, group_size, pod
from gpushare import request as requests
from gpushare.allocation import PodRef
from gpushare.group_size import NO_GROUP, GroupSize
from gpushare.nodefilters import share_resources
from gpushare.request import Request
from webhook.pods import mutation, pod_manifest

# Fields of a pod's spec, and of each container, that decide where it can run.
_WHERE: Final = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")
FITNESS_KEYS: Final = (*_WHERE, "volumes", "hostNetwork", "overhead", "resources")
CONTAINER_KEYS: Final = ("resources", "ports", "restartPolicy")
NO_MANIFEST: Final[pod.PodJson] = types.MappingProxyType({})
_METADATA_KEYS: Final = ("name", "namespace", "uid", "resourceVersion", "labels")
_MAX_NAME: Final = 64  # longer than any container's name
_CHANGED: Final = (
    "its gpushare.io annotations no longer match the resources it was admitted with: delete the pod and recreate it"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """The fields of a pod that the webhook reads.

    created: as the API server writes it; such texts sort by time. node: where it is bound. is_exempt: the API server
    never calls the webhook for it. has_resources: it has our immutable extended resources. has_started: a kubelet has
    reported container statuses. unschedulable: the scheduler's message, if it cannot bind the pod. group: empty for a
    single pod. containers: ordinary ones first. annotations: gpushare's only. request: parsed, or why it is invalid.
    manifest: the parts that node filters read; only of a gated pod.
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
    group_size: GroupSize
    containers: tuple[str, ...]
    annotations: Mapping[str, str]
    request: Request | str
    manifest: pod.PodJson

    @classmethod
    def from_manifest(cls, item: pod.PodJson) -> Pod:
        metadata, spec, status = (item.get(key) or {} for key in ("metadata", "spec", "status"))
        namespace, name = pod.namespaced_name(item)
        everything = pod.annotations_of(item)
        annotations = {key: text for key, text in everything.items() if key.startswith(contract.PREFIX)}
        is_gated = contract.SCHEDULING_GATE in pod.gates(item)
        size = _group_size(annotations)
        return cls(
            ref=PodRef(namespace, name, pod.uid(item)),
            version=str(metadata.get("resourceVersion") or ""),
            phase=str(status.get("phase") or ""),
            created=str(metadata.get("creationTimestamp") or ""),
            priority=pod.priority(item),
            leaves=bool(metadata.get("deletionTimestamp")),
            is_gated=is_gated,
            foreign_gates=pod_manifest.foreign_gates(item),
            node=str(spec.get("nodeName") or ""),
            is_exempt=namespace in contract.EXEMPT_NAMESPACES or contract.MIRROR_ANNOTATION in everything,
            has_resources=pod.has_share_resources(item),
            has_started=any(status.get(key) for key in ("containerStatuses", "initContainerStatuses")),
            unschedulable=_unschedulable(item),
            controller=pod.controller(item),
            group=str(annotations.get(contract.GROUP) or "").strip() if size.is_gang else "",
            group_size=size,
            containers=pod.container_names(item),
            annotations=annotations,
            request=_request(item, is_gated=is_gated),
            manifest=_manifest(item, annotations) if is_gated else NO_MANIFEST,
        )

    @property
    def allocation_id(self) -> str:
        return self.annotations.get(contract.ALLOCATION) or ""

    @property
    def placed_on(self) -> str:
        return self.annotations.get(contract.NODE) or ""

    @property
    def has_ended(self) -> bool:
        return self.phase in {"Succeeded", "Failed"}

    @property
    def waits(self) -> bool:
        return self.is_gated and not self.leaves and not self.has_ended and not self.is_exempt

    @property
    def is_stuck(self) -> bool:
        return self.unschedulable is not None and not self.leaves

    @property
    def may_run(self) -> bool:
        """Whether it may have a share, and runs or may still run. Finalizers can keep a deleted pod running."""
        return not self.is_exempt and self.has_resources and (self.has_started or not self.leaves)

    @property
    def may_hold(self) -> bool:
        """Whether a share is kept for it. A pod that is being deleted and is not bound never will be."""
        return self.may_run or (not self.is_exempt and self.has_resources and bool(self.node))

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.ref.namespace}/pods/{self.ref.name}"

    @property
    def reference(self) -> Mapping[str, str]:
        return {"apiVersion": "v1", "kind": "Pod", **dataclasses.asdict(self.ref)}


def has_share(item: pod.PodJson) -> bool:
    labels = (item.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(contract.SHARE_LABEL) == contract.SHARE_LABEL_VALUE)


def _group_size(annotations: Mapping[str, str]) -> GroupSize:
    try:
        return group_size.parse(str(annotations.get(contract.GROUP_SIZE) or "").strip())
    except errors.QuantityError:
        return NO_GROUP  # which `request` explains


def _request(item: pod.PodJson, *, is_gated: bool) -> Request | str:
    try:
        request = requests.parse(item)
    except errors.RequestError as error:
        return str(error)
    if not is_gated:
        return request  # a placed pod's annotations may change, to resize it
    expected = share_resources.by_container(request)
    agrees = all(
        mutation.has_resources(container, expected.get(str(container.get("name")), {}))
        for container in (*pod.containers(item), *pod.init_containers(item))
    )
    return request if agrees else _CHANGED  # resources are immutable, annotations are not


def _unschedulable(item: pod.PodJson) -> str | None:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if (
        spec.get("nodeName")  # true for nearly all pods
        or contract.ALLOCATION not in pod.annotations_of(item)
        or pod.gates(item)
        or pod.is_terminal(item)
        or status.get("nominatedNodeName")  # the scheduler preempts pods for it, which have grace periods
    ):
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "") if condition.get("reason") == "Unschedulable" else None
    return None


def _manifest(item: pod.PodJson, annotations: Mapping[str, str]) -> pod.PodJson:
    """Return the parts that decide where the pod can run and that ungating changes; the rest may be 256 KiB."""
    metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
    kept = _some(metadata, _METADATA_KEYS)
    if everything := pod.annotations_of(item):
        default = everything.get(pod.DEFAULT_CONTAINER) or ""
        kept["annotations"] = {**annotations, **({pod.DEFAULT_CONTAINER: default[:_MAX_NAME]} if default else {})}
    if owners := [owner for owner in metadata.get("ownerReferences") or [] if owner.get("controller")]:
        kept["ownerReferences"] = _without_nulls(owners)
    small = _some(spec, (*FITNESS_KEYS, "schedulingGates", "preemptionPolicy"))
    for listed in ("containers", "initContainers"):
        if spec.get(listed):
            small[listed] = [_some(container, ("name", *CONTAINER_KEYS)) for container in spec[listed]]
    return {"metadata": kept, "spec": small}


def _some(whole: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: _without_nulls(whole[key]) for key in keys if whole.get(key) is not None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
