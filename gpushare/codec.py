"""GPUNode JSON to and from `GpuNode`.

Reading is tolerant: an entry that makes no sense is set aside with a sentence in `problems`. What a senseless
allocation may hold is not given out: the GPUs it names, or all of the node's if it names none, read as unhealthy.
Writing loses nothing: `to_spec` of what `read` returned has the senseless allocations in it, untouched.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from gpushare import contract, errors
from gpushare.allocation import Allocation, GivenShare, Labels, PodRef
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import Condition, GpuNode, Resize

Json = Mapping[str, Any]
_Entry = TypeVar("_Entry")

_NO_LABELS = Labels()  # one for all: most allocations have none


def read(document: Json) -> GpuNode:
    """The GpuNode in a GPUNode object as the API returns it. Never raises for content, only for a nameless object."""
    metadata = document.get("metadata") or {}
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise errors.CodecError("metadata.name is missing: a GPUNode is named as its node")
    problems: list[str] = []
    spec = document.get("spec") or {}
    status = document.get("status") or {}
    labels = metadata.get("labels") or {}
    cordoned = frozenset(str(uuid) for uuid in spec.get("cordoned") or [])
    gpus, _ = _entries(status.get("gpus"), f"{name}: status.gpus", lambda entry: _read_gpu(entry, cordoned), problems)
    allocations, unread = _entries(spec.get("allocations"), f"{name}: spec.allocations", _read_allocation, problems)
    resizes, _ = _entries(status.get("resizes"), f"{name}: status.resizes", _read_resize, problems)
    cards, _ = _unique(gpus, lambda card: card.uuid, f"{name}: status.gpus", problems)
    held, twice = _unique(allocations, lambda entry: entry.id, f"{name}: spec.allocations", problems)
    unread += [_write_allocation(entry) for entry in twice]
    return GpuNode(
        name=name,
        gpus=tuple(_set_aside(cards, unread)),
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
            for entry in status.get("conditions") or []
            if isinstance(entry, Mapping)
        ),
        resizes=tuple(resizes),
        version=str(metadata.get("resourceVersion", "")),
        problems=tuple(problems),
        unread=tuple(unread),
        created=str(metadata.get("creationTimestamp") or ""),
        labels={str(key): str(value) for key, value in labels.items()} if isinstance(labels, Mapping) else {},
    )


def _set_aside(gpus: list[Gpu], unread: list[Any]) -> list[Gpu]:
    if not unread:
        return gpus
    text = json.dumps(unread)
    named = {card.uuid for card in gpus if card.uuid in text} or {card.uuid for card in gpus}
    reason = "an allocation that may hold it makes no sense: see the GPUNode's spec.allocations"
    return [
        dataclasses.replace(card, healthy=False, health_reason=reason) if card.uuid in named else card for card in gpus
    ]


def to_spec(node: GpuNode) -> dict[str, Any]:
    """The `spec` of the GPUNode object."""
    spec: dict[str, Any] = {"allocations": [*map(_write_allocation, node.allocations), *node.unread]}
    if node.cordoned:
        spec["cordoned"] = sorted(node.cordoned)
    return spec


def to_status(node: GpuNode) -> dict[str, Any]:
    """The `status` of the GPUNode object."""
    return {
        "config": node.config,
        "gpus": [_write_gpu(card) for card in node.gpus],
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
            {"allocation": one.allocation, "share": one.share, "memory": one.memory_bytes, "used": one.used_bytes}
            for one in node.resizes
        ],
    }


def to_document(node: GpuNode) -> dict[str, Any]:
    """The whole GPUNode object."""
    metadata: dict[str, Any] = {"name": node.name}
    known = {"resourceVersion": node.version, "creationTimestamp": node.created, "labels": dict(node.labels)}
    metadata.update((key, value) for key, value in known.items() if value)
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.GPUNODE_KIND,
        "metadata": metadata,
        "spec": to_spec(node),
        "status": to_status(node),
    }


def shares_text(shares: Iterable[GivenShare]) -> str:
    """Shares as one line of JSON, for an annotation. What they are to shrink to is not in it: it is asked for anew."""
    held = (dataclasses.replace(share, shrink_to_bytes=None) for share in shares)
    return json.dumps([_write_share(share) for share in held], separators=(",", ":"))


def read_shares(text: str) -> tuple[GivenShare, ...]:
    """What `shares_text` wrote. Raises CodecError."""
    try:
        shares = tuple(_read_share(entry) for entry in json.loads(text))
    except (errors.CodecError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.CodecError(f"{contract.HELD} makes no sense: {error}") from error
    if not shares:
        raise errors.CodecError(f"{contract.HELD} makes no sense: it has no shares")
    return shares


def _entries(
    listed: Any, where: str, read_one: Callable[[Any], _Entry], problems: list[str]
) -> tuple[list[_Entry], list[Any]]:
    found, unread = [], []
    for position, entry in enumerate(listed if isinstance(listed, list) else []):
        try:
            found.append(read_one(entry))
        except (errors.GpushareError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(f"{where}[{position}] makes no sense and is set aside: {what}")
            unread.append(entry)
    return found, unread


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


def _whole(value: Any, name: str, *, most: int = 2**63 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise errors.CodecError(f"{name} is {value!r}, not a whole number from 0 to {most}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise errors.CodecError(f"{name} is {value!r}, not a text")
    return value


def _texts(values: Any, name: str) -> tuple[str, ...]:
    return tuple([_text(value, name) for value in values])  # a list is faster here than a generator


def _read_gpu(entry: Json, cordoned: frozenset[str]) -> Gpu:
    uuid = _text(entry["uuid"], "uuid")
    major, _, minor = str(entry.get("computeCapability") or "0.0").partition(".")
    numa, linked = entry.get("numaNode"), entry.get("linkGroup")
    return Gpu(
        uuid=uuid,
        index=_whole(entry.get("index", 0), "index", most=4096),
        model=str(entry.get("model", "")),
        memory_bytes=_whole(entry["memory"], "memory"),
        compute_capability=(int(major), int(minor or 0)),
        numa_node=None if numa is None else _whole(numa, "numaNode", most=4096),
        link_group=None if linked is None else _whole(linked, "linkGroup", most=4096),
        pci_bus_id=str(entry.get("pciBusID", "")),
        mode=Mode(entry.get("mode", Mode.FRACTIONAL)),
        pending_mode=Mode(entry["pendingMode"]) if entry.get("pendingMode") else None,
        mig_profiles=tuple(_text(name, "migDevices") for name in entry.get("migDevices") or ()),
        healthy=entry.get("healthy", True) is True,
        health_reason=str(entry.get("healthReason", "")),
        cordoned=uuid in cordoned or bool(entry.get("pendingMode")),
    )


def _write_gpu(card: Gpu) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model,
        "memory": card.memory_bytes,
        "computeCapability": "{}.{}".format(*card.compute_capability),
        "pciBusID": card.pci_bus_id,
        "mode": card.mode.value,
        "healthy": card.healthy,
    }
    if card.pending_mode is not None:
        entry["pendingMode"] = card.pending_mode.value
    if card.mig_profiles:
        entry["migDevices"] = list(card.mig_profiles)
    if card.numa_node is not None:
        entry["numaNode"] = card.numa_node
    if card.link_group is not None:
        entry["linkGroup"] = card.link_group
    if card.health_reason:
        entry["healthReason"] = card.health_reason
    return entry


def _read_resize(entry: Json) -> Resize:
    return Resize(
        allocation=_text(entry["allocation"], "allocation"),
        share=_whole(entry["share"], "share", most=255),
        memory_bytes=_whole(entry["memory"], "memory"),
        used_bytes=_whole(entry["used"], "used"),
    )


def _read_allocation(entry: Json) -> Allocation:
    holder = entry["pod"]
    labels = entry.get("labels") or {}
    until = entry.get("reservedUntil")
    return Allocation(
        id=_text(entry["id"], "id"),
        pod=PodRef(
            namespace=_text(holder["namespace"], "pod.namespace"),
            name=str(holder.get("name", "")),
            uid=str(holder.get("uid", "")),
        ),
        shares=tuple([_read_share(share) for share in entry["shares"]]),
        reserved_until=None if until is None else parse_time(until),
        labels=_read_labels(labels) if labels else _NO_LABELS,
        latency=entry.get("latency") is True,
    )


def _read_labels(labels: Json) -> Labels:
    return Labels(
        affinity=str(labels.get("affinity", "")),
        anti_affinity=str(labels.get("antiAffinity", "")),
        exclusion=str(labels.get("exclusion", "")),
    )


def _read_share(entry: Json) -> GivenShare:
    request_percent = _whole(entry.get("request", 0), "request", most=100)
    limit_percent = _whole(entry.get("limit", 100), "limit", most=100)
    if limit_percent < request_percent:
        raise errors.CodecError(f"limit {limit_percent} is less than request {request_percent}")
    memory_bytes, shrink_to = _whole(entry["memory"], "memory"), entry.get("shrinkTo")
    if shrink_to is not None and _whole(shrink_to, "shrinkTo") >= memory_bytes:
        raise errors.CodecError(f"shrinkTo {shrink_to} is not less than memory {memory_bytes}")
    return GivenShare(
        containers=_texts(entry["containers"], "containers"),
        gpu_uuids=_texts(entry["gpus"], "gpus"),
        request_percent=request_percent,
        limit_percent=limit_percent,
        memory_bytes=memory_bytes,
        shrink_to_bytes=shrink_to,
    )


def _write_allocation(entry: Allocation) -> dict[str, Any]:
    holder = {"namespace": entry.pod.namespace}
    if entry.pod.name:
        holder["name"] = entry.pod.name
    if entry.pod.uid:
        holder["uid"] = entry.pod.uid
    document: dict[str, Any] = {
        "id": entry.id,
        "pod": holder,
        "shares": [_write_share(share) for share in entry.shares],
    }
    if entry.reserved_until is not None:
        document["reservedUntil"] = format_time(entry.reserved_until)
    named = {
        "affinity": entry.labels.affinity,
        "antiAffinity": entry.labels.anti_affinity,
        "exclusion": entry.labels.exclusion,
    }
    labels = {key: value for key, value in named.items() if value}
    if labels:
        document["labels"] = labels
    if entry.latency:
        document["latency"] = True
    return document


def _write_share(share: GivenShare) -> dict[str, Any]:
    document: dict[str, Any] = {
        "containers": list(share.containers),
        "gpus": list(share.gpu_uuids),
        "request": share.request_percent,
        "limit": share.limit_percent,
        "memory": share.memory_bytes,
    }
    if share.shrink_to_bytes is not None:
        document["shrinkTo"] = share.shrink_to_bytes
    return document


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 time."""
    return datetime.datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC, to the microsecond (Kubernetes' MicroTime)."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
