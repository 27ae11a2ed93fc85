"""The GPUNode object as a whole, and the effect of invalid entries."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpushare import contract, cordon_note, errors
from gpushare.allocation import Allocation
from gpushare.codec import allocations, entry_fields
from gpushare.codec.entry_fields import text, whole
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import Condition, GpuNode, Resize

Json = Mapping[str, Any]
_Entry = TypeVar("_Entry")
_Part = TypeVar("_Part", dict[str, Any], list[Any])


def read(document: Json) -> GpuNode:
    """Read a GPUNode object as the API returns it. Content never raises, only an object without a name."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise errors.CodecError("metadata.name is missing: a GPUNode is named as its node")
    problems: list[str] = []
    spec = _part(document, "spec", dict, name, problems)
    status = _part(document, "status", dict, name, problems)
    labels = _part(metadata, "labels", dict, name, problems)
    annotations = metadata.get("annotations")
    cordoned = frozenset(map(str, _part(spec, "cordoned", list, f"{name}: spec", problems)))
    gpus, _ = _entries(status, "gpus", f"{name}: status", lambda entry: _read_gpu(entry, cordoned), problems)
    held, unread = _allocations(spec, f"{name}: spec", problems)
    resizes, _ = _entries(status, "resizes", f"{name}: status", _read_resize, problems)
    gpus, _ = _unique(gpus, lambda gpu: gpu.uuid, f"{name}: status.gpus", problems)
    return GpuNode(
        name=name,
        gpus=tuple(_set_aside(gpus, unread)),
        allocations=tuple(held),
        cordoned=cordoned,
        config=str(status.get("config") or ""),
        conditions=tuple(
            Condition(
                type=str(entry.get("type", "")),
                status=str(entry.get("status", "")),
                reason=str(entry.get("reason", "")),
                message=str(entry.get("message", "")),
                last_transition=str(entry.get("lastTransitionTime", "")),
            )
            for entry in _part(status, "conditions", list, f"{name}: status", problems)
            if isinstance(entry, Mapping)
        ),
        resizes=tuple(resizes),
        version=str(metadata.get("resourceVersion", "")),
        problems=tuple(problems),
        unread=tuple(unread),
        created=str(metadata.get("creationTimestamp") or ""),
        labels={str(key): str(value) for key, value in labels.items()},
        cordon_notes=cordon_note.read(annotations) if isinstance(annotations, Mapping) else {},
    )


def to_spec(node: GpuNode) -> dict[str, Any]:
    """Return the `spec` of the GPUNode object."""
    spec: dict[str, Any] = {"allocations": [*map(allocations.write, node.allocations), *node.unread]}
    if node.cordoned:
        spec["cordoned"] = sorted(node.cordoned)
    return spec


def to_status(node: GpuNode) -> dict[str, Any]:
    """Return the `status` of the GPUNode object."""
    return {
        "config": node.config,
        "gpus": [_gpu_entry(gpu) for gpu in node.gpus],
        "conditions": [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": condition.last_transition,
            }
            for condition in node.conditions
        ],
        "resizes": [
            {
                "allocation": resize.allocation,
                "share": resize.share,
                "memory": resize.memory_bytes,
                "used": resize.used_bytes,
            }
            for resize in node.resizes
        ],
    }


def to_document(node: GpuNode) -> dict[str, Any]:
    """Return the whole GPUNode object."""
    metadata: dict[str, Any] = {"name": node.name}
    known = {
        "resourceVersion": node.version,
        "creationTimestamp": node.created,
        "labels": dict(node.labels),
        "annotations": cordon_note.as_annotations(node.cordon_notes),
    }
    metadata.update((key, value) for key, value in known.items() if value)
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.GPUNODE_KIND,
        "metadata": metadata,
        "spec": to_spec(node),
        "status": to_status(node),
    }


def _part(whole: Json, key: str, kind: type[_Part], where: str, problems: list[str]) -> _Part:
    """Return the value of that key in `whole`; report a value of another type and treat it as absent."""
    value = whole.get(key)
    if isinstance(value, kind):
        return value
    if value is not None:
        problems.append(f"{where}: {key} is invalid and is ignored: it is {errors.quoted(str(value))}")
    return kind()


def _set_aside(gpus: list[Gpu], unread: list[Any]) -> list[Gpu]:
    if not unread:
        return gpus
    text = str(unread)  # not as JSON: YAML has values that JSON lacks
    named = {gpu.uuid for gpu in gpus if gpu.uuid in text} or {gpu.uuid for gpu in gpus}
    reason = "an allocation that may hold it is invalid: see the GPUNode's spec.allocations"
    return [dataclasses.replace(gpu, healthy=False, health_reason=reason) if gpu.uuid in named else gpu for gpu in gpus]


def _allocations(spec: Json, where: str, problems: list[str]) -> tuple[list[Allocation], list[Any]]:
    def ignored(identity: str, sentence: str) -> None:
        problems.append(f"{where}.allocations, {errors.shortened(identity)}: {sentence}")

    read_one = functools.partial(allocations.read, ignored=ignored)
    entries, unread = _entries(spec, "allocations", where, read_one, problems)
    held, twice = _unique(entries, lambda entry: entry.id, f"{where}.allocations", problems)
    return held, [*unread, *map(allocations.write, twice)]


def _read_resize(entry: Json) -> Resize:
    return Resize(
        allocation=entry_fields.text(entry["allocation"], "allocation"),
        share=entry_fields.whole(entry["share"], "share", most=255),
        memory_bytes=entry_fields.whole(entry["memory"], "memory"),
        used_bytes=entry_fields.whole(entry["used"], "used"),
    )


def _entries(
    whole: Json, key: str, where: str, read_one: Callable[[Any], _Entry], problems: list[str]
) -> tuple[list[_Entry], list[Any]]:
    entries, unread = [], []
    for position, entry in enumerate(_part(whole, key, list, where, problems)):
        try:
            entries.append(read_one(entry))
        except (errors.GpushareError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(f"{where}.{key}[{position}] is invalid and is ignored: {errors.shortened(what)}")
            unread.append(entry)
    return entries, unread


def _unique(
    entries: list[_Entry], key: Callable[[_Entry], str], where: str, problems: list[str]
) -> tuple[list[_Entry], list[_Entry]]:
    kept: dict[str, _Entry] = {}
    twice = []
    for entry in entries:
        if key(entry) in kept:
            problems.append(f"{where}: {errors.quoted(key(entry))} occurs twice; the second entry is ignored")
            twice.append(entry)
        else:
            kept[key(entry)] = entry
    return list(kept.values()), twice


def _read_gpu(entry: Json, cordoned: frozenset[str]) -> Gpu:
    """Return the GPU of an entry; `cordoned`: UUIDs of the GPUs that an administrator has cordoned.

    Raises CodecError, KeyError, TypeError, ValueError for an invalid one.
    """
    uuid = text(entry["uuid"], "uuid")
    major, _, minor = str(entry.get("computeCapability") or "0.0").partition(".")
    numa, linked = entry.get("numaNode"), entry.get("linkGroup")
    return Gpu(
        uuid=uuid,
        index=whole(entry.get("index", 0), "index", most=4096),
        model=str(entry.get("model", "")),
        memory_bytes=whole(entry["memory"], "memory"),
        compute_capability=(int(major), int(minor or 0)),
        numa_node=None if numa is None else whole(numa, "numaNode", most=4096),
        link_group=None if linked is None else whole(linked, "linkGroup", most=4096),
        pci_bus_id=str(entry.get("pciBusID", "")),
        mode=Mode(entry.get("mode", Mode.FRACTIONAL)),
        pending_mode=Mode(entry["pendingMode"]) if entry.get("pendingMode") else None,
        mig_profiles=tuple(text(name, "migDevices") for name in entry.get("migDevices") or ()),
        healthy=entry.get("healthy", True) is True,
        health_reason=str(entry.get("healthReason", "")),
        cordoned=uuid in cordoned or bool(entry.get("pendingMode")),
    )


def _gpu_entry(gpu: Gpu) -> dict[str, Any]:
    """Return the GPU as an entry of `status.gpus`."""
    entry: dict[str, Any] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory": gpu.memory_bytes,
        "computeCapability": "{}.{}".format(*gpu.compute_capability),
        "pciBusID": gpu.pci_bus_id,
        "mode": gpu.mode.value,
        "healthy": gpu.healthy,
    }
    if gpu.pending_mode is not None:
        entry["pendingMode"] = gpu.pending_mode.value
    if gpu.mig_profiles:
        entry["migDevices"] = list(gpu.mig_profiles)
    if gpu.numa_node is not None:
        entry["numaNode"] = gpu.numa_node
    if gpu.link_group is not None:
        entry["linkGroup"] = gpu.link_group
    if gpu.health_reason:
        entry["healthReason"] = gpu.health_reason
    return entry
