"""Allocations that are confirmed, released, checked or expired."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpushare import contract
from gpushare.allocation import Allocation, PodRef
from tests import builders
from webhook.controllers import due_changes
from webhook.pods.stored_pod import Pod

NOW = 1000.0


def a_pod(name: str = "trainer", *, uid: str = "u-1", allocation: str = "a1", phase: str = "Running") -> dict[str, Any]:
    made = builders.counted(builders.pod(name, request="0.5"))
    made["metadata"]["uid"] = uid
    made["metadata"]["annotations"][contract.ALLOCATION] = allocation
    return {**made, "status": {"phase": phase}}


def due(
    *held: Allocation, pods: tuple[dict[str, Any], ...] = (), departed: dict[str, dict[str, Any]] | None = None
) -> due_changes.DueChanges:
    node = builders.node()
    nodes = [type(node)(node.name, node.gpus, held)]
    left = {identity: Pod.from_manifest(pod) for identity, pod in (departed or {}).items()}
    return due_changes.find(nodes, map(Pod.from_manifest, pods), now=NOW, departed=left)


def reserved(identity: str = "a1", *, until: float = NOW + 10, name: str = "trainer") -> Allocation:
    return builders.allocation(identity, reserved_until=until, pod_name=name)


def confirmed(identity: str = "a1", *, uid: str = "u-1") -> Allocation:
    return builders.allocation(identity, uid=uid)


def is_settled(changes: due_changes.DueChanges) -> bool:
    return not any((changes.confirm, changes.release, changes.gone, changes.lapsed))


def ids(entries: tuple[due_changes.NodeAllocation, ...]) -> list[str]:
    return [entry.allocation.id for entry in entries]


def test_seen_pod_ends_its_unconfirmed_reservation() -> None:
    changes = due(reserved(), pods=(a_pod(),))
    assert changes.confirm == {"node-a": {"a1": PodRef("default", "trainer", "u-1")}}
    assert is_settled(dataclasses.replace(changes, confirm={}))


def test_pod_that_appears_after_the_expiry_is_confirmed() -> None:
    assert due(reserved(until=NOW - 1), pods=(a_pod(),)).confirm["node-a"]


def test_a_pod_with_a_generated_name_confirms_too() -> None:
    changes = due(reserved(name=""), pods=(a_pod("trainer-x7b2p"),))
    assert changes.confirm["node-a"]["a1"].name == "trainer-x7b2p"


def test_reservation_of_a_deleted_pod_is_released_before_it_expires() -> None:
    (entry,) = due(reserved(), departed={"a1": a_pod()}).gone
    assert (entry.node, entry.allocation.id, entry.allocation.pod) == (
        "node-a",
        "a1",
        PodRef("default", "trainer", "u-1"),
    )
    assert ids(due(reserved(name=""), departed={"a1": a_pod("trainer-x7b2p")}).gone) == ["a1"]
    for other in ({"a1": a_pod("another")}, {"a2": a_pod(allocation="a2")}):  # it is not theirs
        assert is_settled(due(reserved(), departed=other))
    stays = due(reserved(), pods=(a_pod(uid="u-2"),), departed={"a1": a_pod()})
    assert (stays.confirm["node-a"]["a1"].uid, stays.gone) == ("u-2", ())


def test_only_the_right_pod_confirms_a_reservation() -> None:
    elsewhere = a_pod()
    elsewhere["metadata"]["namespace"] = "elsewhere"
    for other in (a_pod("another"), a_pod(allocation="a2"), elsewhere):
        assert not due(reserved(), pods=(other,)).confirm


def test_first_of_two_claims_counts() -> None:
    first, second = a_pod("one", uid="u-1"), a_pod("two", uid="u-2")
    first["metadata"]["creationTimestamp"], second["metadata"]["creationTimestamp"] = "2026-01-01", "2026-01-02"
    assert due(reserved(name=""), pods=(second, first)).confirm["node-a"]["a1"].uid == "u-1"


def test_a_reservation_waits_for_its_time_and_then_lapses() -> None:
    waits = due(reserved("a1", until=NOW + 5), reserved("a2", until=NOW + 9))
    assert (waits.lapsed, waits.next_expiry) == ((), NOW + 5)
    assert ids(due(reserved(until=NOW)).lapsed) == ["a1"]


def test_share_of_an_ended_pod_is_released() -> None:
    for phase in ("Succeeded", "Failed"):
        assert ids(due(confirmed(), pods=(a_pod(phase=phase),)).release) == ["a1"]
        assert ids(due(reserved(), pods=(a_pod(phase=phase),)).release) == ["a1"]


def test_living_pod_keeps_its_share_whatever_its_annotations_say() -> None:
    for pod in (a_pod(), a_pod(allocation="forged"), a_pod(phase="Unknown")):
        assert is_settled(due(confirmed(), pods=(pod,)))


def test_missing_pod_keeps_its_share_until_that_is_verified() -> None:
    changes = due(confirmed(), pods=(a_pod(uid="another"),))
    assert ids(changes.gone) == ["a1"]
    assert not changes.release


def test_pod_keeps_the_allocation_it_names() -> None:
    held = (confirmed("a1"), confirmed("a2"))
    assert ids(due(*held, pods=(a_pod(allocation="a2"),)).release) == ["a1"]
    assert ids(due(*held, pods=(a_pod(allocation="forged"),)).release) == []


def forgeries() -> dict[str, dict[str, Any]]:
    """Return pods that the webhook never reviewed, and one that never started and never will."""
    pods = {name: a_pod() for name in ("mirror", "kube-system", "uncounted", "leaves")}
    pods["mirror"]["metadata"]["annotations"][contract.MIRROR_ANNOTATION] = "x"
    pods["kube-system"]["metadata"]["namespace"] = "kube-system"
    pods["uncounted"]["spec"]["containers"][0]["resources"] = {}
    pods["leaves"] |= {"status": {"phase": "Pending"}}
    pods["leaves"]["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:05Z", "finalizers": ["tenant.example/stay"]}
    return pods


@pytest.mark.parametrize("kind", sorted(forgeries()))
def test_pod_that_cannot_have_a_share_has_none(kind: str) -> None:
    forged = forgeries()[kind]
    namespace = forged["metadata"]["namespace"]
    held = dataclasses.replace(confirmed(), pod=PodRef(namespace, "trainer", "u-1"))
    assert ids(due(held, pods=(forged,)).gone) == ["a1"]
    waits = dataclasses.replace(reserved(), pod=PodRef(namespace, "trainer"))
    assert not due(waits, pods=(forged,)).confirm


def test_terminating_pod_that_may_run_keeps_its_share() -> None:
    bound, started = forgeries()["leaves"], forgeries()["leaves"]
    bound["spec"]["nodeName"] = "node-a"
    started["status"]["containerStatuses"] = [{"name": "main"}]
    for pod in (bound, started):
        assert is_settled(due(confirmed(), pods=(pod,)))
