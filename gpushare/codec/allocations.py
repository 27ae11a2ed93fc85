"""The entries of spec.allocations, and their shares, which are also written on pods."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare import contract, errors
from gpushare.allocation import ALL_STEPS, TO_THE_END, Allocation, GivenShare, Labels, PodRef, Steps
from gpushare.codec.entry_fields import format_time, parse_time, text, texts, whole

Json = Mapping[str, Any]
Ignored = Callable[[str, str], None]

_NO_LABELS = Labels()  # one object for all: most allocations have no label


def read(entry: Json, ignored: Ignored) -> Allocation:
    """Return the allocation of an entry.

    Raises CodecError, KeyError, TypeError, ValueError, AttributeError for an invalid one. ignored: called with its id
    and a sentence for an invalid field that does not affect what the allocation holds.
    """
    holder = entry["pod"]
    labels = entry.get("labels") or {}
    until = entry.get("reservedUntil")
    identity = text(entry["id"], "id")
    return Allocation(
        id=identity,
        pod=PodRef(
            namespace=text(holder["namespace"], "pod.namespace"),
            name=str(holder.get("name", "")),
            uid=str(holder.get("uid", "")),
        ),
        shares=tuple([_read_share(share, identity, ignored) for share in entry["shares"]]),
        reserved_until=None if until is None else parse_time(until),
        labels=_read_labels(labels) if labels else _NO_LABELS,
        latency=entry.get("latency") is True,
    )


def write(entry: Allocation) -> dict[str, Any]:
    """Return the allocation as an entry of `spec.allocations`."""
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


def shares_text(shares: Iterable[GivenShare]) -> str:
    """Return shares as one line of JSON, for an annotation. Pending reductions are left out: the user requests them
    again.
    """
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


def _read_labels(labels: Json) -> Labels:
    return Labels(
        affinity=str(labels.get("affinity", "")),
        anti_affinity=str(labels.get("antiAffinity", "")),
        exclusion=str(labels.get("exclusion", "")),
    )


def _read_share(entry: Json, identity: str, ignored: Ignored) -> GivenShare:
    request_percent = whole(entry.get("request", 0), "request", most=100)
    limit_percent = whole(entry.get("limit", 100), "limit", most=100)
    if limit_percent < request_percent:
        raise errors.CodecError(f"limit {limit_percent} is less than request {request_percent}")
    memory_bytes, shrink_to = whole(entry["memory"], "memory"), entry.get("shrinkTo")
    if shrink_to is not None and not (type(shrink_to) is int and 0 <= shrink_to < memory_bytes):
        what = f"shrinkTo {errors.shown(shrink_to)} is not less than the share's memory {memory_bytes}"
        ignored(identity, f"{what}: it is ignored, and the share keeps its memory")
        shrink_to = None
    return GivenShare(
        containers=texts(entry["containers"], "containers"),
        gpu_uuids=texts(entry["gpus"], "gpus"),
        request_percent=request_percent,
        limit_percent=limit_percent,
        memory_bytes=memory_bytes,
        shrink_to_bytes=shrink_to,
        steps=_read_steps(entry) if "firstStep" in entry or "lastStep" in entry else ALL_STEPS,
    )


def _read_steps(entry: Json) -> Steps:
    """Read the steps. Raises CodecError if the share would never be in use, because it would count for nothing."""
    first = whole(entry.get("firstStep", ALL_STEPS.first), "firstStep", most=TO_THE_END)
    last = whole(entry.get("lastStep", ALL_STEPS.last), "lastStep", most=TO_THE_END)
    if last < first:
        raise errors.CodecError(f"lastStep {last} is less than firstStep {first}")
    return Steps(first, last)


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
    if share.steps.first != ALL_STEPS.first:
        document["firstStep"] = share.steps.first
    if share.steps.last != ALL_STEPS.last:
        document["lastStep"] = share.steps.last
    return document
