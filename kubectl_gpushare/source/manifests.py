"""Manifests: the pods that a file for `kubectl apply -f` would create, directly or by a Deployment, a Job and so on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import pod
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import inputs, misspelt


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """A pod, and how many of it its owner would create."""

    name: str  # `Deployment/web`, `Pod/trainer`
    pod: pod.PodJson
    count: int = 1


# kind -> where its pod template is, and where it says how many
_TEMPLATES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Deployment": (("spec", "template"), ("spec", "replicas")),
    "ReplicaSet": (("spec", "template"), ("spec", "replicas")),
    "StatefulSet": (("spec", "template"), ("spec", "replicas")),
    "ReplicationController": (("spec", "template"), ("spec", "replicas")),
    "Job": (("spec", "template"), ("spec", "parallelism")),
    "CronJob": (("spec", "jobTemplate", "spec", "template"), ("spec", "jobTemplate", "spec", "parallelism")),
    "DaemonSet": (("spec", "template"), ()),
}


def read(path: str, *, namespace: str) -> list[Manifest]:
    """Return the pods of a file that ask for a share; `-` is standard input. Raises `FileError`, also for a misspelt
    key.
    """
    where = inputs.name(path)
    every = [
        manifest
        for document in inputs.documents(inputs.text(path), where)
        for manifest in _manifests(document, namespace)
    ]
    manifests = [manifest for manifest in every if _asks(manifest.pod)]
    for manifest in every:
        if not _asks(manifest.pod) and (wrong := misspelt.find(manifest.pod)):
            raise plugin_errors.FileError(f"{where}: in {manifest.name} {wrong}")
    for manifest in manifests:
        if wrong := inputs.not_text(manifest.pod):
            raise plugin_errors.FileError(f"{where} has in {manifest.name} a pod that is invalid: {wrong}")
    if not manifests:
        raise plugin_errors.FileError(
            f"{where} has no pod that asks for a share of a GPU: it needs an annotation such as "
            'gpushare.io/request: "0.5", on the pod itself or in the template of its owner'
        )
    return manifests


def _manifests(document: Any, namespace: str) -> Iterator[Manifest]:
    if not isinstance(document, Mapping):
        return
    if isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _manifests(item, namespace)
        return
    kind = str(document.get("kind", ""))
    metadata = _fields(document, "metadata")
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    if kind == "Pod":
        template, count = document, 1
    elif kind in _TEMPLATES:
        at, counted = _TEMPLATES[kind]
        template = _at(document, at)
        template = template if isinstance(template, Mapping) else {}
        replicas = _at(document, counted) if counted else None
        count = replicas if isinstance(replicas, int) else 1
    else:
        return
    labelled = {**_fields(template, "metadata"), "name": name}
    labelled["namespace"] = str(metadata.get("namespace") or labelled.get("namespace") or namespace)
    spec = template.get("spec") or {}
    if isinstance(spec, Mapping) and (claims := _at(document, ("spec", "volumeClaimTemplates"))):
        spec = {**spec, "volumes": [*_listed(spec.get("volumes")), *map(_made_for_it, _listed(claims))]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": labelled, "spec": spec}
    yield Manifest(f"{kind}/{name}", manifest, count)


def _asks(manifest: pod.PodJson) -> bool:
    return isinstance(_fields(manifest, "metadata").get("annotations"), Mapping) and pod.asks_for_share(manifest)


def _made_for_it(claim: Any) -> Any:
    """Return the volume of a StatefulSet's pod for a claim template, as an ephemeral volume of the pod."""
    if not isinstance(claim, Mapping):
        return claim
    return {"name": str(_fields(claim, "metadata").get("name") or ""), "ephemeral": {"volumeClaimTemplate": claim}}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _fields(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
