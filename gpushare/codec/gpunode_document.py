"""The GPUNode object as a whole, and the treatment of invalid entries."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpushare import contract, cordon_note, errors
from gpushare.allocation import Allocation
from gpushare.codec import allocations, entry_fields, status_gpus
from gpushare.gpu import Gpu
from gpushare.gpunode import Condition, GpuNode, Resize

Json = Mapping[str, Any]
_Entry = TypeVar("_Entry")
_Part = TypeVar("_Part", dict[str, Any], list[Any])


def read(document: Json) -> GpuNode:
    """Return the GpuNode of a GPUNode object as the API returns it. Raises only for an object without a name."""
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
    gpus, _ = _entries(status, "gpus", f"{name}: status", lambda entry: status_gpus.read(entry, cordoned), problems)
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
        "gpus": [status_gpus.write(gpu) for gpu in node.gpus],
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
    """Return the value of that key; if it has the wrong type, record a problem and return an empty one."""
    value = whole.get(key)
    if isinstance(value, kind):
        return value
    if value is not None:
        problems.append(f"{where}: {key} is invalid and is set aside: it is {errors.quoted(str(value))}")
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
            problems.append(f"{where}.{key}[{position}] is invalid and is set aside: {errors.shortened(what)}")
            unread.append(entry)
    return entries, unread


def _unique(
    entries: list[_Entry], key: Callable[[_Entry], str], where: str, problems: list[str]
) -> tuple[list[_Entry], list[_Entry]]:
    kept: dict[str, _Entry] = {}
    twice = []
    for entry in entries:
        if key(entry) in kept:
            problems.append(f"{where}: {errors.quoted(key(entry))} is there twice and the second is set aside")
            twice.append(entry)
        else:
            kept[key(entry)] = entry
    return list(kept.values()), twice
