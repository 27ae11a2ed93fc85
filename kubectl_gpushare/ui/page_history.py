"""The page's history: sums since the page was opened, and arrivals and departures. Nothing stores it.

It begins with the last hour, reconstructed from objects and Events: existing pods have a creation time, and Events say
when pods were gated and placed. Shares that ended before are unknown, so that part is a lower bound, and is marked
`told`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, ledger, pod, quantity
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode
from kubectl_gpushare.source.snapshot import Snapshot, message_of
from kubectl_gpushare.views import as_kubectl, tenants

Json = dict[str, Any]
EventJson = Mapping[str, Any]

BACK_SECONDS: Final = 3600
_STEP_SECONDS: Final = 120
MAX_POINTS: Final = 2000  # as ui/src/store.ts; with one a minute before the last hour, they are of about a day
_COARSE_SECONDS: Final = 60
MAX_CHANGES: Final = 200
# Events that the list of changes shows, on pods and on GPUNodes.
TOLD: Final = frozenset(
    {
        contract.EVENT_GATED,
        contract.EVENT_PLACED,
        contract.EVENT_RESIZED,
        contract.EVENT_EXPIRED,
        contract.EVENT_REPLACED,
        contract.EVENT_GPU_UNHEALTHY,
        contract.EVENT_GPU_HEALTHY,
        contract.EVENT_CONFIG_APPLIED,
    }
)
_TROUBLE: Final = frozenset({contract.EVENT_GPU_UNHEALTHY, contract.EVENT_EXPIRED})


def point(model: Mapping[str, Any]) -> Json:
    """Return the sums of a model of the page as a point of the chart, in GPUs; None is unknown."""
    totals, queue = model["totals"], model["queue"]
    used = totals.get("used")
    return {
        "at": round(model["at"]),
        "allocated": totals["allocated"][0] / 100,
        "used": used["gpus"] if used else None,
        "stranded": totals["stranded"],
        "waiting": None if queue.get("why") else len(queue["pods"]) + queue.get("more", 0),
    }


def before(snapshot: Snapshot, events: Sequence[EventJson] | None, now: float) -> list[Json]:
    """Return the points of the last hour that pods and Events tell; none if neither pods nor Events were read."""
    if snapshot.pods is None:
        return []
    pods = tenants.Pods.from_snapshot(snapshot)
    placed = _placed(events)
    began = [
        (_placed_at(entry, pods, placed), ledger.held_in_all(entry)[0])
        for gpu_node in snapshot.nodes
        for entry in gpu_node.allocations
        if not entry.is_backfill_reservation
    ]
    waits = [*_waits(snapshot.pods, events)]
    points = []
    for back in range(BACK_SECONDS, 0, -_STEP_SECONDS):
        at = now - back
        points.append(
            {
                "at": round(at),
                "allocated": sum(percent for since, percent in began if 0 < since <= at) / 100,
                "used": None,
                "stranded": None,
                "waiting": None if events is None else sum(since <= at < until for since, until in waits),
                "told": True,
            }
        )
    return points


def thinned(points: Sequence[Json]) -> list[Json]:
    """Return all points of the last hour, one a minute of those before, and at most MAX_POINTS."""
    kept: list[Json] = []
    minute = -1
    for each in points:
        its = each["at"] // _COARSE_SECONDS
        if each["at"] >= points[-1]["at"] - BACK_SECONDS or its != minute:
            kept.append(each)
        minute = its
    return kept[-MAX_POINTS:]


def _placed(events: Sequence[EventJson] | None) -> dict[str, float]:
    """Return when each pod was last placed, by `namespace/name`, as Events tell."""
    placed: dict[str, float] = {}
    for event in events or ():
        if event.get("reason") == contract.EVENT_PLACED:
            placed[_name(event)] = max(placed.get(_name(event), 0.0), _when(event))
    return placed


def _placed_at(entry: Allocation, pods: tenants.Pods, placed: Mapping[str, float]) -> float:
    """Return since when a share is held: its Event, else the start of its pod; 0 if neither is known."""
    manifest = pods.holder(entry)
    if manifest is None:
        return 0.0
    at = placed.get(str(entry.pod), 0.0)  # perhaps of an earlier pod of this name
    return at if at and at >= _created(manifest) else _seconds(as_kubectl.pod_started(manifest))


def _created(manifest: pod.PodJson | None) -> float:
    return _seconds(str(((manifest or {}).get("metadata") or {}).get("creationTimestamp") or ""))


def _waits(pods: Iterable[pod.PodJson], events: Sequence[EventJson] | None) -> Iterator[tuple[float, float]]:
    """Yield from when to when each pod was gated (Unix seconds): gated pods until now, and placed ones by Events."""
    for manifest in pods:
        if contract.SCHEDULING_GATE in pod.gates(manifest):
            yield _created(manifest), float("inf")
    gated: dict[tuple[str, str], float] = {}
    for event in sorted(events or (), key=_when):
        about = event.get("involvedObject") or event.get("regarding") or {}
        name = (str(about.get("namespace") or ""), str(about.get("name") or ""))
        if event.get("reason") == contract.EVENT_GATED:
            gated.setdefault(name, _first(event))
        elif event.get("reason") == contract.EVENT_PLACED and name in gated:
            yield gated.pop(name), _when(event)


def told(events: Sequence[EventJson], now: float) -> list[Json]:
    """Return the changes of the last hour that Events report, oldest first."""
    recent = [event for event in events if event.get("reason") in TOLD and 0 <= now - _when(event) <= BACK_SECONDS]
    return [
        {
            "at": round(_when(event)),
            "kind": str(event["reason"]),
            "what": _name(event),
            "text": message_of(event)[:300],
            **({"trouble": True} if event["reason"] in _TROUBLE else {}),
        }
        for event in sorted(recent, key=_when)
    ][-MAX_CHANGES:]


def compare(old: Iterable[GpuNode], new: Iterable[GpuNode], now: float) -> list[Json]:
    """Return arrivals, departures, resized shares, and GPUs whose health changed, between two states of the nodes."""
    earlier = {gpu_node.name: gpu_node for gpu_node in old}
    changes: list[Json] = []
    for after in new:
        first = earlier.pop(after.name, None)
        if first is None:
            changes.append(
                _change(now, "NodeAppeared", after.name, f"{len(after.gpus)} GPU{'s' * (len(after.gpus) != 1)}")
            )
        elif first is not after:
            changes += _on_node(first, after, now)
    changes += [_change(now, "NodeGone", name, "its GPUNode was deleted", trouble=True) for name in earlier]
    return changes


def _on_node(old: GpuNode, new: GpuNode, now: float) -> Iterator[Json]:
    had, has = ({entry.id: entry for entry in each.allocations} for each in (old, new))
    for identity, entry in had.items():
        if identity not in has and not entry.is_backfill_reservation:
            yield _change(now, "Left", str(entry.pod), _amounts(entry, old))
    for identity, entry in has.items():
        if entry.is_backfill_reservation:
            continue
        before_it = had.get(identity)
        if before_it is None:
            yield _change(now, "Arrived", str(entry.pod), _amounts(entry, new))
        elif before_it.shares != entry.shares:
            yield _change(now, "Resized", str(entry.pod), _amounts(entry, new))
    health = {gpu.uuid: gpu for gpu in old.gpus}
    for gpu in new.gpus:
        known = health.get(gpu.uuid)
        if known is not None and known.healthy is not gpu.healthy:
            kind = contract.EVENT_GPU_HEALTHY if gpu.healthy else contract.EVENT_GPU_UNHEALTHY
            yield _change(now, kind, f"{new.name}/{gpu.index}", gpu.health_reason, trouble=not gpu.healthy)


def _change(now: float, kind: str, what: str, text: str, *, trouble: bool = False) -> Json:
    return {"at": round(now), "kind": kind, "what": what, "text": text, **({"trouble": True} if trouble else {})}


def _amounts(entry: Allocation, gpu_node: GpuNode) -> str:
    percent, memory_bytes = ledger.held_in_all(entry)
    gpus = gpu_node.gpu_by_uuid()
    indexes = ",".join(str(gpus[uuid].index) for uuid in entry.gpu_uuids if uuid in gpus)
    size = f"{quantity.format_compute(percent)} with {quantity.format_bytes(memory_bytes)}"
    return f"{size}, on {gpu_node.name}/{indexes}"


def _name(event: EventJson) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return "/".join(filter(None, (str(about.get("namespace") or ""), str(about.get("name") or ""))))


def _when(event: EventJson) -> float:
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return _seconds(str(last or metadata.get("creationTimestamp") or ""))


def _first(event: EventJson) -> float:
    metadata = event.get("metadata") or {}
    return _seconds(str(event.get("firstTimestamp") or event.get("eventTime") or metadata.get("creationTimestamp")))


def _seconds(moment: str) -> float:
    try:
        return quantity.parse_time(moment)
    except ValueError:
        return 0.0
