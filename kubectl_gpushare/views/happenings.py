"""Happenings: the recent Events about the described object, as `kubectl describe` shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.gpunode import Gpu
from kubectl_gpushare.output.page import Section
from kubectl_gpushare.output.table import NONE, UNKNOWN, Cell, Column, Table, sentence
from kubectl_gpushare.source import objects
from kubectl_gpushare.views import ages

MAX = 10
EventJson = Mapping[str, Any]

_COLUMNS = (
    Column("Type"),
    Column("Reason", least=8, wrap=True),
    Column("Age"),
    Column("From", least=8, wrap=True),
    Column("Message", least=20, wrap=True),
)


def section(events: Sequence[EventJson] | None, *, now: float) -> tuple[Section, ...]:
    """Return the newest Events, at most MAX, the oldest first; nothing if Events were not read."""
    if events is None:
        return ()
    recent = sorted(events, key=_moment)[-MAX:]
    return (Section("Events", (Table(_COLUMNS, [_row(event, now) for event in recent]),) if recent else (NONE,)),)


def of_gpu(events: Sequence[EventJson] | None, gpu: Gpu, name: str) -> tuple[EventJson, ...] | None:
    """Return the Events of a node that name this GPU, as agent and webhook do: by its UUID, its index or
    `NODE/INDEX`.
    """
    if events is None:
        return None
    named = re.compile(rf"{re.escape(gpu.uuid)}|\bGPU {gpu.index}\b|(?<![\w.-]){re.escape(name)}(?![\w/])")
    return tuple(event for event in events if named.search(objects.message_of(event)))


def items(events: Sequence[EventJson] | None) -> list[dict[str, Any]]:
    """Return the same in a document."""
    return [
        {
            "type": str(event.get("type", "")),
            "reason": str(event.get("reason", "")),
            "time": _moment(event),
            "count": _count(event),
            "message": objects.message_of(event),
        }
        for event in sorted(events or (), key=_moment)[-MAX:]
    ]


def _row(event: EventJson, now: float) -> tuple[str | Cell, ...]:
    kind = str(event.get("type", ""))
    age = ages.since(_moment(event), now=now) or UNKNOWN
    times = _count(event)
    return (
        Cell(kind or NONE, "warn" if kind == "Warning" else ""),
        str(event.get("reason") or NONE),
        f"{age} (x{times})" if times > 1 else age,
        str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or NONE),
        sentence(objects.message_of(event)),
    )


def _moment(event: EventJson) -> str:
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        metadata.get("creationTimestamp"),
    )
    return next((str(moment) for moment in times if moment), "")


def _count(event: EventJson) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)
