"""GPUNode JSON to and from `GpuNode`.

Reading is tolerant: an invalid entry is left out, with a sentence in `problems`. The GPUs that an invalid allocation
may hold are not handed out: those that it names, or all of the node's if it names none, read as unhealthy. Writing
loses nothing: `to_spec` of what `read` returned contains the invalid allocations, untouched.

Releases before 0.4 do not know lent memory. So it has its own field in the status: such an agent overwrites
`resizes`, and leaves unknown fields alone. `gpu_status` says how they see a GPU.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from gpushare import contract, errors, gpu_status, gpunode, json_fields, quantity
from gpushare.allocation import (
    ALL_STEPS,
    TO_THE_END,
    Allocation,
    GivenShare,
    Isolation,
    Labels,
    MigInstance,
    PodRef,
    Steps,
)
from gpushare.gpunode import Condition, GpuNode, Resize
from gpushare.mig import profile

Json = Mapping[str, Any]
Ignored = Callable[[str, str], None]
_Entry = TypeVar("_Entry")
_Part = TypeVar("_Part", dict[str, Any], list[Any])

_NO_LABELS: Final = Labels()  # one object for all: most allocations have no label
_LABEL_KEYS: Final = ("affinity", "antiAffinity", "exclusion")  # as the first fields of Labels
_RESIZE_KEYS: Final = ("allocation", "share", "memory", "used")  # as the fields of Resize
_CONDITION_KEYS: Final = ("type", "status", "reason", "message", "lastTransitionTime")  # as the fields of Condition


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
    gpus, _ = _entries(status, "gpus", f"{name}: status", lambda entry: gpu_status.read(entry, cordoned), problems)

    def ignored(identity: str, sentence: str) -> None:
        problems.append(f"{name}: spec.allocations, {errors.shortened(identity)}: {sentence}")

    entries, unread = _entries(
        spec, "allocations", f"{name}: spec", lambda entry: _read_allocation(entry, ignored), problems
    )
    held, twice = _unique(entries, lambda entry: entry.id, f"{name}: spec.allocations", problems)
    unread += map(_write_allocation, twice)
    resizes, _ = _entries(status, "resizes", f"{name}: status", _read_resize, problems)
    if "lent" in status:
        resizes = _highest([*resizes, *_entries(status, "lent", f"{name}: status", _read_resize, problems)[0]])
    gpus, _ = _unique(gpus, lambda gpu: gpu.uuid, f"{name}: status.gpus", problems)
    if unread:
        text = str(unread)  # not as JSON: YAML has values that JSON lacks
        named = {gpu.uuid for gpu in gpus if gpu.uuid in text} or {gpu.uuid for gpu in gpus}
        why = "an allocation that may hold it is invalid: see the GPUNode's spec.allocations"
        unhealthy = {gpu.uuid: dataclasses.replace(gpu, healthy=False, health_reason=why) for gpu in gpus}
        gpus = [unhealthy[gpu.uuid] if gpu.uuid in named else gpu for gpu in gpus]
    borrowed = {str(uuid): str(uid) for uuid, uid in _part(spec, "borrowed", dict, f"{name}: spec", problems).items()}
    node = GpuNode(
        name=name,
        gpus=tuple(gpus),
        allocations=tuple(held),
        cordoned=cordoned,
        config=str(status.get("config") or ""),
        conditions=tuple(
            Condition(*(str(entry.get(key, "")) for key in _CONDITION_KEYS))
            for entry in _part(status, "conditions", list, f"{name}: status", problems)
            if isinstance(entry, Mapping)
        ),
        resizes=tuple(resizes),
        version=str(metadata.get("resourceVersion", "")),
        problems=tuple(problems),
        unread=tuple(unread),
        created=str(metadata.get("creationTimestamp") or ""),
        labels={str(key): str(value) for key, value in labels.items()},
        cordon_notes=gpunode.read_cordon_notes(annotations) if isinstance(annotations, Mapping) else {},
    )
    return node.borrowing(borrowed) if borrowed or any(gpu.owner for gpu in gpus) else node


def to_spec(node: GpuNode) -> dict[str, Any]:
    """Return the `spec` of the GPUNode object."""
    entries = [*map(_write_allocation, node.allocations), *node.unread]
    return {"allocations": entries} | json_fields.present(cordoned=sorted(node.cordoned), borrowed=dict(node.borrowed))


def to_status(node: GpuNode) -> dict[str, Any]:
    """Return the `status` of the GPUNode object."""
    there = {entry.id for entry in node.allocations}
    # A share whose allocation is not restored yet may be on any GPU.
    unplaced = [resize for resize in node.resizes if resize.allocation not in there]
    unplaced_bytes = sum(resize.memory_bytes for resize in unplaced)
    on_gpus, loans = node.lent_by_gpu(), node.lent()
    lent = [resize for resize in node.resizes if resize in unplaced or (resize.allocation, resize.share) in loans]
    return {
        "config": node.config,
        "gpus": [gpu_status.write(gpu, unplaced_bytes + on_gpus.get(gpu.uuid, 0)) for gpu in node.gpus],
        "conditions": [
            dict(zip(_CONDITION_KEYS, dataclasses.astuple(condition), strict=True)) for condition in node.conditions
        ],
        "resizes": [_write_resize(resize) for resize in node.resizes if resize not in lent],
    } | json_fields.present(lent=[_write_resize(resize) for resize in lent])


def to_document(node: GpuNode) -> dict[str, Any]:
    """Return the whole GPUNode object."""
    metadata = {"name": node.name} | json_fields.present(
        resourceVersion=node.version,
        creationTimestamp=node.created,
        labels=dict(node.labels),
        annotations=gpunode.cordon_annotations(node.cordon_notes),
    )
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


def _read_resize(entry: Json) -> Resize:
    return Resize(
        allocation=json_fields.text(entry["allocation"], "allocation"),
        share=json_fields.whole(entry["share"], "share", most=255),
        memory_bytes=json_fields.whole(entry["memory"], "memory"),
        used_bytes=json_fields.whole(entry["used"], "used"),
    )


def _write_resize(resize: Resize) -> dict[str, Any]:
    return dict(zip(_RESIZE_KEYS, dataclasses.astuple(resize), strict=True))


def _highest(resizes: Iterable[Resize]) -> list[Resize]:
    """Return one report for each share, the one with the highest limit, in order."""
    by_share: dict[tuple[str, int], Resize] = {}
    for resize in resizes:
        place = (resize.allocation, resize.share)
        by_share[place] = max(by_share.get(place, resize), resize, key=lambda said: said.memory_bytes)
    return [by_share[place] for place in sorted(by_share)]


def _read_allocation(entry: Json, ignored: Ignored) -> Allocation:
    """Return the allocation of an entry; `ignored` gets its ID and a sentence for a field that affects no amount."""
    holder = entry["pod"]
    labels, isolation = entry.get("labels") or {}, Isolation(entry.get("isolation", Isolation.ARBITER))
    until = entry.get("reservedUntil")
    identity = json_fields.text(entry["id"], "id")
    return Allocation(
        id=identity,
        pod=PodRef(
            namespace=json_fields.text(holder["namespace"], "pod.namespace"),
            name=str(holder.get("name", "")),
            uid=str(holder.get("uid", "")),
        ),
        shares=tuple([_read_share(share, identity, ignored) for share in entry["shares"]]),
        reserved_until=None if until is None else quantity.parse_time(until),
        labels=_read_labels(labels, isolation),
        latency=entry.get("latency") is True,
    )


def _read_labels(labels: Json, isolation: Isolation) -> Labels:
    if not labels and isolation is Isolation.ARBITER:
        return _NO_LABELS
    affinity, anti_affinity, exclusion = (str(labels.get(key, "")) for key in _LABEL_KEYS)
    return Labels(affinity, anti_affinity, exclusion, isolation)


def _write_allocation(entry: Allocation) -> dict[str, Any]:
    labels = json_fields.present(
        affinity=entry.labels.affinity, antiAffinity=entry.labels.anti_affinity, exclusion=entry.labels.exclusion
    )
    return {
        "id": entry.id,
        "pod": {"namespace": entry.pod.namespace} | json_fields.present(name=entry.pod.name, uid=entry.pod.uid),
        "shares": [_write_share(share) for share in entry.shares],
    } | json_fields.present(
        reservedUntil=None if entry.reserved_until is None else quantity.format_time(entry.reserved_until),
        labels=labels,
        isolation=json_fields.unless(entry.labels.isolation, Isolation.ARBITER),
        latency=entry.latency or None,
    )


def shares_text(shares: Iterable[GivenShare]) -> str:
    """Return shares as a line of JSON for an annotation, without pending reductions: the user requests them again."""
    held = (dataclasses.replace(share, shrink_to_bytes=None) for share in shares)
    return json.dumps([_write_share(share) for share in held], separators=(",", ":"))


def read_shares(text: str) -> tuple[GivenShare, ...]:
    """Read the text of `shares_text`. Raises CodecError."""
    try:
        shares = tuple(_read_share(entry, "", lambda *_: None) for entry in json.loads(text))
    except (errors.CodecError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.CodecError(f"{contract.HELD} is invalid: {error}") from error
    if not shares:
        raise errors.CodecError(f"{contract.HELD} is invalid: it has no shares")
    return shares


def _read_share(entry: Json, identity: str, ignored: Ignored) -> GivenShare:
    request_percent = json_fields.whole(entry.get("request", 0), "request", most=100)
    limit_percent = json_fields.whole(entry.get("limit", 100), "limit", most=100)
    if limit_percent < request_percent:
        raise errors.CodecError(f"limit {limit_percent} is less than request {request_percent}")
    memory_bytes, shrink_to = json_fields.whole(entry["memory"], "memory"), entry.get("shrinkTo")
    if shrink_to is not None and not (type(shrink_to) is int and 0 <= shrink_to < memory_bytes):
        what = f"shrinkTo {errors.shown(shrink_to)} is not less than the share's memory {memory_bytes}"
        ignored(identity, f"{what}: it is ignored, and the share keeps its memory")
        shrink_to = None
    steps = ALL_STEPS
    if "firstStep" in entry or "lastStep" in entry:
        first = json_fields.whole(entry.get("firstStep", steps.first), "firstStep", most=TO_THE_END)
        last = json_fields.whole(entry.get("lastStep", steps.last), "lastStep", most=TO_THE_END)
        if last < first:  # never in use, so it would count for nothing
            raise errors.CodecError(f"lastStep {last} is less than firstStep {first}")
        steps = Steps(first, last)
    return GivenShare(
        containers=json_fields.texts(entry["containers"], "containers"),
        gpu_uuids=json_fields.texts(entry["gpus"], "gpus"),
        request_percent=request_percent,
        limit_percent=limit_percent,
        memory_bytes=memory_bytes,
        shrink_to_bytes=shrink_to,
        steps=steps,
        memory_limit_bytes=_read_memory_limit(entry, identity, ignored),
        mig=_read_mig_instance(entry["mig"]) if entry.get("mig") else None,
    )


def _read_mig_instance(entry: Json) -> MigInstance:
    return MigInstance(
        str(profile.parse(json_fields.text(entry["profile"], "profile"))),
        json_fields.whole(entry["start"], "start", most=gpu_status.MAX_SLICES),
        json_fields.whole(entry["slices"], "slices", most=gpu_status.MAX_SLICES),
        json_fields.whole(entry["compute"], "compute", most=100),
        json_fields.whole(entry["memory"], "memory"),
    )


def _read_memory_limit(entry: Json, identity: str, ignored: Ignored) -> int | None:
    limit_bytes = entry.get("memoryLimit")
    if limit_bytes is None or (type(limit_bytes) is int and 0 <= limit_bytes <= json_fields.MAX):
        return limit_bytes
    what = f"memoryLimit {errors.shown(limit_bytes)} is not an amount"
    ignored(identity, f"{what}: it is ignored, and the share gets no more than its memory")
    return None


def _write_share(share: GivenShare) -> dict[str, Any]:
    return {
        "containers": list(share.containers),
        "gpus": list(share.gpu_uuids),
        "request": share.request_percent,
        "limit": share.limit_percent,
        "memory": share.memory_bytes,
    } | json_fields.present(
        shrinkTo=share.shrink_to_bytes,
        firstStep=share.steps.first or None,
        lastStep=share.steps.last if share.ends_early else None,
        memoryLimit=share.memory_limit_bytes,
        mig=share.mig and _mig_entry(share.mig),
    )


def _mig_entry(made: MigInstance) -> dict[str, Any]:
    return {
        "profile": made.profile,
        "start": made.start,
        "slices": made.memory_slices,
        "compute": made.compute_percent,
        "memory": made.memory_bytes,
    }
