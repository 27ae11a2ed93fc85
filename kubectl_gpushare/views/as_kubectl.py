"""Ages, states of pods and Events, in the format that kubectl uses for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare import contract, pod, quantity
from gpushare.gpunode import Gpu
from kubectl_gpushare.output.values import NONE, UNKNOWN, Cell, Column, Section, Table, sentence
from kubectl_gpushare.source.snapshot import message_of

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400

# below so many seconds: (unit, letter, smaller unit or 0, its letter)
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def age(seconds: float) -> str:
    """Format an age, less precisely the longer it is; a negative one (clocks differ) is `0s`."""
    whole = max(0, int(seconds))
    for below, unit, letter, smaller, smaller_letter in _STEPS:
        if whole < below:
            rest = whole % unit // smaller if smaller else 0
            return f"{whole // unit}{letter}" + (f"{rest}{smaller_letter}" if rest else "")
    return f"{whole // _YEAR}y"


def since(moment: str, *, now: float) -> str:
    try:
        return age(now - quantity.parse_time(moment)) if moment else ""
    except ValueError:
        return ""


GATED = "Gated"


def pod_state(manifest: pod.PodJson) -> str:
    """Return `Running`, `Pending`, `Gated`, or why a container is down: `CrashLoopBackOff`, `OOMKilled`."""
    status = manifest.get("status") or {}
    if (manifest.get("metadata") or {}).get("deletionTimestamp"):
        return "Terminating"
    if contract.SCHEDULING_GATE in pod.gates(manifest):
        return GATED
    if status.get("reason"):
        return str(status["reason"])
    for container in container_statuses(manifest):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
        if terminated.get("exitCode"):
            return str(terminated.get("reason") or f"ExitCode:{terminated['exitCode']}")
        if waiting.get("reason"):
            return str(waiting["reason"])
    return str(status.get("phase") or "Pending")


def container_statuses(manifest: pod.PodJson) -> list[Mapping[str, Any]]:
    status = manifest.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def pod_started(manifest: pod.PodJson) -> str:
    """Return when the kubelet started the pod, else when it was created: RFC 3339, or empty."""
    status = manifest.get("status") or {}
    return str(status.get("startTime") or (manifest.get("metadata") or {}).get("creationTimestamp") or "")


MAX_EVENTS = 10
EventJson = Mapping[str, Any]

_COLUMNS = (
    Column("Type"),
    Column("Reason", least=8, wrap=True),
    Column("Age"),
    Column("From", least=8, wrap=True),
    Column("Message", least=20, wrap=True),
)


def events_section(events: Sequence[EventJson] | None, *, now: float) -> tuple[Section, ...]:
    if events is None:
        return ()
    recent = sorted(events, key=_moment)[-MAX_EVENTS:]
    return (Section("Events", (Table(_COLUMNS, [_event_row(event, now) for event in recent]),) if recent else (NONE,)),)


def events_of_gpu(events: Sequence[EventJson] | None, gpu: Gpu, name: str) -> tuple[EventJson, ...] | None:
    """Return a node's Events that name this GPU, as agent and webhook do: by UUID, index or `NODE/INDEX`."""
    if events is None:
        return None
    named = re.compile(rf"{re.escape(gpu.uuid)}|\bGPU {gpu.index}\b|(?<![\w.-]){re.escape(name)}(?![\w/])")
    return tuple(event for event in events if named.search(message_of(event)))


def event_items(events: Sequence[EventJson] | None) -> list[dict[str, Any]]:
    return [
        {
            "type": str(event.get("type", "")),
            "reason": str(event.get("reason", "")),
            "time": _moment(event),
            "count": _count(event),
            "message": message_of(event),
        }
        for event in sorted(events or (), key=_moment)[-MAX_EVENTS:]
    ]


def _event_row(event: EventJson, now: float) -> tuple[str | Cell, ...]:
    kind = str(event.get("type", ""))
    how_old = since(_moment(event), now=now) or UNKNOWN
    times = _count(event)
    return (
        Cell(kind or NONE, "warn" if kind == "Warning" else ""),
        str(event.get("reason") or NONE),
        f"{how_old} (x{times})" if times > 1 else how_old,
        str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or NONE),
        sentence(message_of(event)),
    )


def _moment(event: EventJson) -> str:
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    seen = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(seen or metadata.get("creationTimestamp") or "")


def _count(event: EventJson) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)
