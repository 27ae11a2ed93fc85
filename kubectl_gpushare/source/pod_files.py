"""The pods in files: in manifests, also those that a Deployment, a Job and so on would create, and in traces.

A trace is a CSV file of pods that arrive and end. Its columns are `name`, `start` and `duration` (or `end`) in seconds,
and any request key of gpushare without its prefix, such as `request`, `memory`, `gpus`, `model`. The columns of
Alibaba's published GPU traces also work: `creation_time`, `deletion_time`, `num_gpu`, `gpu_milli`, `gpu_spec`,
`cpu_milli`, `memory_mib`.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import contract, errors, pod, quantity
from gpushare.gpunode import Gpu, GpuNode
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import inputs


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """A pod, and how many of it its owner would create."""

    name: str  # `Deployment/web`, `Pod/trainer`
    pod: pod.PodJson
    count: int = 1


# kind -> where its pod template is, and where it says how many
_TEMPLATES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(
        ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"),
        (("spec", "template"), ("spec", "replicas")),
    ),
    "Job": (("spec", "template"), ("spec", "parallelism")),
    "CronJob": (("spec", "jobTemplate", "spec", "template"), ("spec", "jobTemplate", "spec", "parallelism")),
    "DaemonSet": (("spec", "template"), ()),
}


def read(path: str, *, namespace: str) -> list[Manifest]:
    """Return the pods of a file or a directory that ask for a share. Raises `FileError`, also for a misspelt key."""
    where = inputs.name(path)
    every = [
        (inputs.name(file), manifest)
        for file in inputs.manifest_files(path)
        for document in inputs.documents(inputs.text(file), inputs.name(file))
        for manifest in _manifests(document, namespace)
    ]
    manifests = [manifest for _, manifest in every if _asks(manifest.pod)]
    for file, manifest in every:
        if not _asks(manifest.pod) and (wrong := inputs.misspelt(manifest.pod)):
            raise plugin_errors.FileError(f"{file}: in {manifest.name} {wrong}")
    for file, manifest in every:
        if _asks(manifest.pod) and (wrong := inputs.not_text(manifest.pod)):
            raise plugin_errors.FileError(f"{file} has in {manifest.name} a pod that is invalid: {wrong}")
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


_KEYS = {key.removeprefix(contract.PREFIX): key for key in contract.REQUEST_KEYS}
_NODES = re.compile(r"([1-9]\d{0,4})x([1-9]\d?)(?::([^:]+))?(?::([^:]+))?")
_MODEL, _MEMORY = "NVIDIA A100-SXM4-80GB", "80Gi"


@dataclasses.dataclass(frozen=True, slots=True)
class TracePod:
    """A pod of a trace; `duration_seconds` is None if it stays."""

    start_seconds: float
    duration_seconds: float | None
    pod: Mapping[str, Any]


def read_trace(path: str) -> list[TracePod]:
    """Return the pods of a trace that ask for a share, by start. Raises `FileError`."""
    where = inputs.name(path)
    pods = []
    for number, row in enumerate(csv.DictReader(io.StringIO(inputs.text(path))), 2):
        try:
            line = _line(row, number)
        except ValueError as error:
            raise plugin_errors.FileError(f"{where}, line {number}, is invalid: {error}") from error
        if line is not None:
            pods.append(line)
    if not pods:
        raise plugin_errors.FileError(f"{where} has no pod that asks for a share: add a column such as request or gpus")
    return sorted(pods, key=lambda line: line.start_seconds)


def copied(manifest: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    metadata = manifest.get("metadata") or {}
    return {**manifest, "metadata": {**metadata, "name": f"{metadata.get('name') or 'pod'}-{number}"}}


def made_up_nodes(text: str) -> list[GpuNode]:
    """Return made-up nodes: `100x8:Tesla T4:16Gi` is 100 nodes with 8 GPUs each. Raises `PluginError`."""
    match = _NODES.fullmatch(text.strip())
    if match is None:
        raise plugin_errors.PluginError(
            f'--nodes "{text}" is invalid: write NODESxGPUS[:MODEL[:MEMORY]], as 100x8 or "20x4:Tesla T4:16Gi"'
        )
    try:
        memory_bytes = quantity.parse_bytes(match[4] or _MEMORY)
    except errors.QuantityError as error:
        raise plugin_errors.PluginError(f'--nodes "{text}": {error}') from error
    model = match[3] or _MODEL
    stem = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    gpu_nodes = []
    for number in range(int(match[1])):
        name = f"{stem}-{number}"
        gpus = tuple(Gpu(f"GPU-{name}-{index}", index, model, memory_bytes) for index in range(int(match[2])))
        gpu_nodes.append(GpuNode(name, gpus))
    return gpu_nodes


def _line(row: Mapping[str, str | None], number: int) -> TracePod | None:
    cells = {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}
    asked = dict(_annotations(cells))
    if not asked:
        return None
    start = float(cells.get("start") or cells.get("creation_time") or 0)
    end = cells.get("end") or cells.get("deletion_time")
    duration = cells.get("duration")
    name = re.sub(r"[^a-z0-9.-]", "-", (cells.get("name") or "pod").lower())
    amounts = (("cpu", "cpu_milli", "m"), ("memory", "memory_mib", "Mi"))
    host = {resource: f"{cells[column]}{unit}" for resource, column, unit in amounts if cells.get(column)}
    metadata = {"name": f"{name}-{number}", "namespace": "simulated", "annotations": asked}
    spec = {"containers": [{"name": "main", "resources": {"requests": host}}]}
    left = float(duration) if duration else max(0.0, float(end) - start) if end else None
    return TracePod(start, left, {"metadata": metadata, "spec": spec})


def _annotations(cells: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for column, value in cells.items():
        if column in _KEYS and value:
            yield _KEYS[column], value
    count = int(cells.get("num_gpu") or 0)
    if count:
        milli = int(cells.get("gpu_milli") or 1000)
        try:
            yield contract.REQUEST, quantity.format_compute(max(1, round(milli / 10)) if milli < 1000 else 100)
        except errors.QuantityError as error:
            raise ValueError(error) from error
        yield contract.GPUS, str(count)
        if cells.get("gpu_spec"):
            yield contract.MODEL, cells["gpu_spec"].replace("|", ",")
