"""The units that gated pods form, and why other pods wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpushare import contract
from tests import builders
from webhook.controllers.gated_pods import waiting_units
from webhook.controllers.gated_pods.waiting_units import PodIndex
from webhook.pods.stored_pod import Pod


def member(
    number: int, *, size: int = 3, gated: bool = True, phase: str = "Pending", owner: str = "", **fields: Any
) -> dict[str, Any]:
    made = builders.pod(f"worker-{number}", request="1", group="ring", group_size=str(size))
    made["metadata"].update(uid=f"u-{number}", creationTimestamp=f"2026-01-01T00:00:{number:02}Z", **fields)
    made["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}] if gated else []
    if owner:
        made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "ring", "uid": owner, "controller": True}]
    return {**made, "status": {"phase": phase}}


def alone(name: str, *, priority: int = 0, created: str = "2026-01-01T00:00:00Z", gates: tuple[str, ...] = ()) -> Any:
    made = builders.pod(name, request="0.5")
    made["metadata"].update(uid=f"u-{name}", creationTimestamp=created)
    names = (contract.SCHEDULING_GATE, *gates)
    made["spec"].update(priority=priority, schedulingGates=[{"name": gate} for gate in names])
    return made


def arrange(pods: list[dict[str, Any]], ungated: Collection[str] = ()) -> waiting_units.Arranged:
    index = PodIndex(map(Pod.from_manifest, pods))
    return waiting_units.Arranger().arrange(index.waiting, index.members, ungated=ungated)


def units(arranged: waiting_units.Arranged) -> list[list[str]]:
    return [[pod.ref.name for pod in unit.members] for unit in arranged.units]


def said(arranged: waiting_units.Arranged) -> dict[str, str]:
    return {pod.ref.name: sentence for pod, sentence in arranged.held_back}


def test_a_group_waits_until_it_is_complete() -> None:
    arranged = arrange([member(0), member(1)])
    assert units(arranged) == []
    assert set(said(arranged).values()) == {'waits for 1 more of its group "ring" (have 2 of 3)'}
    assert units(arrange([member(0), member(1), member(2)])) == [["worker-0", "worker-1", "worker-2"]]


def test_groups_are_per_namespace() -> None:
    other = member(2)
    other["metadata"]["namespace"] = "elsewhere"
    assert units(arrange([member(0), member(1), other])) == []


def test_pods_beyond_the_group_size_wait() -> None:
    arranged = arrange([member(number) for number in range(4)])
    assert units(arranged) == [["worker-0", "worker-1", "worker-2"]]
    assert said(arranged) == {"worker-3": 'its group "ring" already has 3 other pods: it waits until they are placed'}
    placed = [member(number, gated=False) for number in range(3)]
    assert units(arrange([*placed, member(3)])) == [["worker-3"]]


def test_recreated_member_joins_the_running_gang() -> None:
    running = [member(0, gated=False, phase="Running"), member(1, gated=False, phase="Running")]
    assert units(arrange([*running, member(2)])) == [["worker-2"]]
    assert units(arrange([running[0], member(2)])) == []


def test_pod_that_was_just_ungated_counts_as_placed() -> None:
    pods = [member(0), member(1), member(2)]
    assert units(arrange(pods, ungated={"u-0"})) == [["worker-1", "worker-2"]]


def test_only_siblings_count_among_succeeded_members() -> None:
    yesterday = [member(number, gated=False, phase="Succeeded", owner="old") for number in range(2)]
    assert units(arrange([*yesterday, member(2, owner="new")])) == []
    siblings = [member(number, gated=False, phase="Succeeded", owner="new") for number in range(2)]
    assert units(arrange([*siblings, member(2, owner="new")])) == [["worker-2"]]
    failed = [member(number, gated=False, phase="Failed", owner="new") for number in range(2)]
    assert units(arrange([*failed, member(2, owner="new")])) == []


def test_terminating_member_does_not_count() -> None:
    leaving = member(0, gated=False, phase="Running", deletionTimestamp="2026-01-01T01:00:00Z")
    assert units(arrange([leaving, member(1), member(2)])) == []


def test_different_group_sizes_are_reported() -> None:
    arranged = arrange([member(0), member(1), member(2, size=4)])
    assert units(arranged) == []
    assert set(said(arranged).values()) == {
        'its group "ring" has several sizes: 3 in pod worker-0 and 4 in pod worker-2; '
        "delete the pods with the wrong gpushare.io/group-size and recreate them"
    }


def test_pod_with_a_foreign_gate_has_no_turn() -> None:
    arranged = arrange([alone("queued", gates=("example.com/quota",)), alone("free")])
    assert units(arranged) == [["free"]]
    assert said(arranged)["queued"].endswith(
        'to remove the scheduling gate "example.com/quota": it gets a GPU after that'
    )


def test_group_waits_for_gates_of_other_controllers() -> None:
    queued = member(2)
    queued["spec"]["schedulingGates"].append({"name": "example.com/quota"})
    arranged = arrange([member(0), member(1), queued])
    assert units(arranged) == []
    assert said(arranged)["worker-0"] == (
        'waits for its group "ring": 1 of its 3 pods have scheduling gates of other controllers'
    )


def test_a_gang_is_as_old_as_its_youngest_member_and_as_important_as_its_least() -> None:
    early, late = alone("early", created="2026-01-01T00:00:01Z"), alone("late", created="2026-01-01T00:00:59Z")
    important = member(0)
    important["spec"]["priority"] = 1000
    arranged = arrange([late, important, member(1), member(2), early])
    assert units(arranged) == [["early"], ["worker-0", "worker-1", "worker-2"], ["late"]]
