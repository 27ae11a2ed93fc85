"""Happenings: the recent Events of what is described, as `kubectl describe` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubectl_gpushare.output.page import Section
from kubectl_gpushare.output.table import NONE, UNKNOWN, Cell, Column, Table, sentence
from kubectl_gpushare.views import ages

MOST = 10
EventJson = Mapping[str, Any]

_COLUMNS = (
    Column("Type"),
    Column("Reason", least=8, wrap=True),
    Column("Age"),
    Column("From", least=8, wrap=True),
    Column("Message", least=20, wrap=True),
)


def section(events: Sequence[EventJson] | None, *, now: float) -> tuple[Section, ...]:
    """The newest Events, oldest of them first; nothing where nobody asked for them."""
    if events is None:
        return ()
    recent = sorted(events, key=_moment)[-MOST:]
    return (Section("Events", (Table(_COLUMNS, [_row(one, now) for one in recent]),) if recent else (NONE,)),)


def items(events: Sequence[EventJson] | None) -> list[dict[str, Any]]:
    """The same in a document."""
    return [
        {
            "type": str(one.get("type", "")),
            "reason": str(one.get("reason", "")),
            "time": _moment(one),
            "count": _count(one),
            "message": str(one.get("message") or one.get("note") or ""),
        }
        for one in sorted(events or (), key=_moment)[-MOST:]
    ]


def _row(one: EventJson, now: float) -> tuple[str | Cell, ...]:
    kind = str(one.get("type", ""))
    age = ages.since(_moment(one), now=now) or UNKNOWN
    times = _count(one)
    return (
        Cell(kind or NONE, "warn" if kind == "Warning" else ""),
        str(one.get("reason") or NONE),
        f"{age} (x{times})" if times > 1 else age,
        str(one.get("reportingComponent") or (one.get("source") or {}).get("component") or NONE),
        sentence(str(one.get("message") or one.get("note") or "")),
    )


def _moment(one: EventJson) -> str:
    series = one.get("series") or {}
    metadata = one.get("metadata") or {}
    found = (
        series.get("lastObservedTime"),
        one.get("lastTimestamp"),
        one.get("eventTime"),
        metadata.get("creationTimestamp"),
    )
    return next((str(moment) for moment in found if moment), "")


def _count(one: EventJson) -> int:
    return int((one.get("series") or {}).get("count") or one.get("count") or 1)
