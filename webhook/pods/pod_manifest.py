"""A pod's manifest as admission reads it: parts looked up once, gates that keep it waiting, and its structure. Pure.

A share is guaranteed from the moment it is given, so a pod that cannot run yet would waste it: it stays gated. The API
server sends only pods, but any client can connect to the port. The structure is checked only after a review has failed,
so it costs admissions nothing: it distinguishes an invalid pod, which is denied, from a defect of the webhook.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.nodefilters import volumes
from gpushare.pod import PodJson
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request

Container = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PodSpecView:
    """A view of a manifest, whose own objects it has. all_containers: ordinary containers, then init containers."""

    manifest: PodJson
    spec: Mapping[str, Any]
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    all_containers: tuple[Container, ...]
    default_container: str

    @classmethod
    def read(cls, manifest: PodJson) -> PodSpecView:
        """Read a manifest that keeps to all caps. Raises an error of any type if it is not a valid pod."""
        metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
        containers, init_containers = tuple(pod.containers(manifest)), tuple(pod.init_containers(manifest))
        return cls(
            manifest,
            spec,
            metadata.get("annotations") or {},
            metadata.get("labels") or {},
            containers,
            init_containers,
            (*containers, *init_containers),
            pod.default_container(manifest),
        )

    def request(self) -> Request:
        names = tuple(str(container.get("name") or "") for container in self.all_containers)
        sidecars = tuple((str(each.get("name") or ""), pod.is_sidecar(each)) for each in self.init_containers)
        return requests.read(self.annotations, names, self.default_container, init_containers=sidecars)

    @property
    def pinned_host(self) -> str:
        """The host in the node selector of a pod that was placed before; empty for other pods."""
        if contract.ALLOCATION not in self.annotations:
            return ""
        return str((self.spec.get("nodeSelector") or {}).get(contract.HOSTNAME_LABEL) or "")


def gate_reason(manifest: PodJson, request: Request) -> Refusal | None:
    """Return why the pod has to wait regardless of free capacity; None if it may be placed now."""
    foreign = foreign_gates(manifest)
    if foreign:
        return Refusal(foreign_gates_reason(foreign), cause=Cause.GATE)
    if request.group_size.is_gang:
        # The placer counts the members. Here they arrive one by one, at different replicas.
        return Refusal(
            f"waits for its group {errors.quoted(request.group)}: {request.group_size.rule}", cause=Cause.GROUP
        )
    return None


def foreign_gates(manifest: PodJson) -> tuple[str, ...]:
    return tuple(gate for gate in pod.gates(manifest) if gate != contract.SCHEDULING_GATE)


def foreign_gates_reason(foreign: tuple[str, ...]) -> str:
    names = ", ".join(errors.quoted(name) for name in foreign[:3])
    return f"waits for another controller to remove the scheduling gate {names}: it gets a GPU after that"


_TEXT: Final = "text"
_COUNT: Final = "a whole number"
_ANY: Final = "anything"

# A kind above; {field: schema} for an object, where "*" stands for every field; [schema] for a list. Null counts as
# absent.
_TEXTS: Final = {"*": _TEXT}
_EXPRESSIONS: Final = [{"key": _TEXT, "operator": _TEXT, "values": [_TEXT]}]
_SELECTOR: Final = {"matchLabels": _TEXTS, "matchExpressions": _EXPRESSIONS}
_NODE_TERM: Final = {"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}
_POD_TERM: Final = {
    "topologyKey": _TEXT,
    **dict.fromkeys(("labelSelector", "namespaceSelector"), _SELECTOR),
    **{key: [_TEXT] for key in ("namespaces", "matchLabelKeys", "mismatchLabelKeys")},
}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_RESOURCES: Final = {"limits": {"*": _ANY}, "requests": {"*": _ANY}}
_CONTAINER: Final = {
    **dict.fromkeys(("name", "restartPolicy"), _TEXT),
    "env": [{"name": _TEXT, "value": _TEXT, "valueFrom": {"fieldRef": {"fieldPath": _TEXT}}}],
    "resources": _RESOURCES,
    "securityContext": {},
    "volumeMounts": [{"mountPath": _TEXT}],
    "volumeDevices": [{"devicePath": _TEXT}],
    "ports": [{"hostPort": _COUNT, "containerPort": _COUNT, "hostIP": _TEXT, "protocol": _TEXT}],
}
_SPREAD: Final = {"topologyKey": _TEXT, "labelSelector": _SELECTOR, "matchLabelKeys": [_TEXT]}
_TEMPLATE: Final = {"metadata": {"annotations": _TEXTS}, "spec": {"storageClassName": _TEXT}}
_VOLUME: Final = {
    "name": _TEXT,
    "persistentVolumeClaim": {"claimName": _TEXT},
    "ephemeral": {"volumeClaimTemplate": _TEMPLATE},
    **{field: {} for field in volumes.OLD_FIELDS},
}
_POD: Final = {
    "metadata": {
        **dict.fromkeys(("name", "generateName", "namespace", "uid"), _TEXT),
        **dict.fromkeys(("annotations", "labels"), _TEXTS),
    },
    "spec": {
        **{key: [_CONTAINER] for key in ("containers", "initContainers", "ephemeralContainers")},
        "nodeName": _TEXT,
        "nodeSelector": _TEXTS,
        "schedulingGates": [{"name": _TEXT}],
        "tolerations": [dict.fromkeys(("key", "operator", "value", "effect"), _TEXT)],
        "affinity": {
            "nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [_NODE_TERM]}},
            **{key: {_REQUIRED: [_POD_TERM]} for key in ("podAffinity", "podAntiAffinity")},
        },
        "topologySpreadConstraints": [{**_SPREAD, "maxSkew": _COUNT, "minDomains": _COUNT}],
        "volumes": [_VOLUME],
        "overhead": {"*": _ANY},
        "resources": _RESOURCES,
        "priority": _COUNT,
    },
    "status": {"phase": _TEXT},
}


def why_invalid(manifest: Any) -> str | None:
    """Return why this is not a valid pod, as a sentence with the path, or None."""
    return next(_wrong(manifest, _POD, ""), None) if manifest is not None else None


def _wrong(value: Any, schema: Any, path: str) -> Iterator[str]:
    if isinstance(schema, str):
        if _is_no(value, schema):
            yield _sentence(path, schema)
    elif isinstance(schema, dict):
        if not isinstance(value, dict):
            yield _sentence(path, "an object")
            return
        for key, entry in value.items():
            below = schema.get(key, schema.get("*"))
            # A shortcut for most fields of a large pod.
            if below is None or entry is None or (isinstance(below, str) and not _is_no(entry, below)):
                continue
            yield from _wrong(entry, below, f"{path}.{key}" if path else str(key))
    else:
        if not isinstance(value, list):
            yield _sentence(path, "a list")
            return
        for position, entry in enumerate(value):
            if entry is None:
                yield _sentence(f"{path}[{position}]", "there")
            elif not isinstance(schema[0], str) or _is_no(entry, schema[0]):
                yield from _wrong(entry, schema[0], f"{path}[{position}]")


def _is_no(value: Any, kind: str) -> bool:
    if kind == _TEXT:
        return not isinstance(value, str)
    return kind == _COUNT and (isinstance(value, bool) or not isinstance(value, int))


def _sentence(path: str, kind: str) -> str:
    return f"{path[:200] or 'the object'} is not {kind}: this is not a valid pod"
