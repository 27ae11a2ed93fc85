"""The history of the page: the last hour by Events and pods, and the changes between two states."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpushare import contract, quantity
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui import page_history
from tests.kubectl_gpushare import sample


def event(reason: str, name: str, minutes_ago: float, message: str = "x") -> dict[str, Any]:
    return {
        "reason": reason,
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": name},
        "eventTime": quantity.format_time(sample.NOW - 60 * minutes_ago),
        "message": message,
    }


def test_the_last_hour_counts_shares_from_when_their_pods_came() -> None:
    pods = [*sample.pods()]
    late = {**pods[0], "status": {**pods[0]["status"], "startTime": quantity.format_time(sample.NOW - 600)}}
    points = page_history.before(Snapshot(sample.nodes(), (late, *pods[1:])), None, sample.NOW)
    allocated = [point["allocated"] for point in points]
    assert allocated[-1] - allocated[0] == 0.5  # the trainer's request
    assert all(point["used"] is None and point["stranded"] is None and point["told"] for point in points)
    assert all(point["waiting"] is None for point in points)  # Events were not read


def test_a_share_counts_from_when_it_was_placed_and_not_while_its_pod_waited() -> None:
    pods = [*sample.pods()]
    placed = event(contract.EVENT_PLACED, pods[0]["metadata"]["name"], 20)
    points = page_history.before(Snapshot(sample.nodes(), pods), [placed], sample.NOW)
    since = [point["at"] for point in points if point["allocated"] == points[-1]["allocated"]]
    assert min(since) == round(sample.NOW) - 20 * 60
    assert points[-1]["allocated"] - points[0]["allocated"] == 0.5


def test_a_share_whose_pod_is_unknown_is_left_out() -> None:
    points = page_history.before(Snapshot(sample.nodes(), ()), [], sample.NOW)
    assert {point["allocated"] for point in points} == {0}


def test_old_points_are_thinned_to_one_a_minute() -> None:
    points = [{"at": 5 * number} for number in range(5000)]
    kept = page_history.thinned(points)
    assert kept[-1] == points[-1]
    assert len([point for point in kept if point["at"] >= points[-1]["at"] - 3600]) == 721
    assert len(kept) < 1100
    assert page_history.thinned(kept) == kept
    assert len(page_history.thinned([{"at": 60 * number} for number in range(9000)])) == page_history.MAX_POINTS


def test_waiting_pods_of_the_last_hour_are_told_by_events() -> None:
    events = [event(contract.EVENT_GATED, "was", 40), event(contract.EVENT_PLACED, "was", 20)]
    points = page_history.before(Snapshot(sample.nodes(), ()), events, sample.NOW)
    waited = [point["at"] for point in points if point["waiting"]]
    assert min(waited) == round(sample.NOW) - 40 * 60
    assert max(waited) == round(sample.NOW) - 22 * 60


def test_without_pods_there_is_no_last_hour() -> None:
    assert page_history.before(Snapshot(sample.nodes()), None, sample.NOW) == []


def test_changes_of_the_last_hour_are_those_that_events_report() -> None:
    events = [
        event(contract.EVENT_PLACED, "new", 5, "placed on gpu-1/0"),
        event(contract.EVENT_GPU_UNHEALTHY, "gpu-2", 7),
        event(contract.EVENT_GATED, "old", 90),
        event("Pulled", "other", 1),
    ]
    told = page_history.told(events, sample.NOW)
    assert [(change["kind"], change["what"]) for change in told] == [("GpuUnhealthy", "ml/gpu-2"), ("Placed", "ml/new")]
    assert told[0]["trouble"]
    assert told[1]["text"] == "placed on gpu-1/0"


def test_arrivals_departures_resizes_and_health_are_changes() -> None:
    first, second, third = sample.nodes()
    trainer, notebook, *rest = first.allocations
    bigger = dataclasses.replace(notebook.shares[0], request_percent=30)
    new = sample.held("ml/fresh", sample.uuid("gpu-1", 3), request=10, gib=4)
    sick = dataclasses.replace(first.gpus[3], healthy=False, health_reason="XID 79")
    after = dataclasses.replace(
        first,
        gpus=(*first.gpus[:3], sick),
        allocations=(dataclasses.replace(notebook, shares=(bigger,)), *rest, new),
    )
    changes = page_history.compare((first, second), (after, third), sample.NOW)
    assert {(change["kind"], change["what"]) for change in changes} == {
        ("Resized", "ml/notebook"),
        ("Arrived", "ml/fresh"),
        ("Left", str(trainer.pod)),
        ("GpuUnhealthy", "gpu-1/3"),
        ("NodeAppeared", "gpu-10"),
        ("NodeGone", "gpu-2"),
    }
    arrived = next(change for change in changes if change["kind"] == "Arrived")
    assert arrived["text"] == "0.1 with 4Gi, on gpu-1/3"
    assert page_history.compare((first, second), (first, second), sample.NOW) == []


def test_a_point_has_no_zero_for_what_is_unknown() -> None:
    model = {"at": 1.0, "totals": {"allocated": [150, 400], "stranded": 0.25}, "queue": {"pods": [], "why": "no right"}}
    assert page_history.point(model) == {"at": 1, "allocated": 1.5, "used": None, "stranded": 0.25, "waiting": None}
