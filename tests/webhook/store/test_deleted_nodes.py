"""The allocations of a deleted GPUNode, and whether all of them are known."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpushare import codec, contract
from gpushare.allocation import Allocation
from gpushare.cluster.object_store import ChangeType, Delta, Key
from tests import builders
from webhook.controllers import restore
from webhook.pods.stored_pod import Pod
from webhook.store.node_ledger import KEPT_SECONDS, DeletedNodes

LISTED_AT = 100.0


class Followed:
    def __init__(self) -> None:
        self.now = LISTED_AT
        self.found = DeletedNodes(lambda: self.now)
        self._there: dict[str, Any] | None = None

    def see(self, document: dict[str, Any] | None, *, watching: bool = True, listed_at: float = LISTED_AT) -> None:
        before, self._there = self._there, document
        kind = ChangeType.DELETED if document is None else ChangeType.ADDED if before is None else ChangeType.MODIFIED
        self.found.changed(Delta(kind, Key("", "node-a"), before, document), watching=watching, listed_at=listed_at)

    @property
    def ids(self) -> list[str]:
        return [entry.id for entry in self.found.entries("node-a")]


def opened(*ids: str) -> dict[str, Any]:
    node = builders.node()
    return codec.to_document(type(node)(node.name, node.gpus, tuple(builders.allocation(identity) for identity in ids)))


def closed() -> dict[str, Any]:
    return {**opened(), "spec": {}}


def test_entries_are_kept_until_the_next_gpunode_is_open() -> None:
    followed = Followed()
    followed.see(opened("a", "b"), watching=False)
    followed.see(opened("b", "c"))
    followed.see(None)
    followed.see(closed())
    assert followed.ids == ["b", "c"]
    assert followed.found.unknown_since("node-a") is None
    followed.see(None)  # and again, before it was opened
    followed.see(closed())
    assert followed.ids == ["b", "c"]
    followed.see(opened("b"))
    assert followed.ids == []


def test_gpunode_listed_as_closed_may_have_had_any_shares() -> None:
    followed = Followed()
    followed.see(closed(), watching=False)
    assert followed.found.unknown_since("node-a") == LISTED_AT
    followed.see(opened())
    assert followed.found.unknown_since("node-a") is None


def test_gpunode_deleted_between_two_lists_may_have_had_more_shares() -> None:
    followed = Followed()
    followed.see(opened("a"), watching=False)
    followed.see(None, watching=False, listed_at=200.0)
    followed.see(closed(), watching=False, listed_at=200.0)
    assert followed.ids == ["a"]
    assert followed.found.unknown_since("node-a") == 200.0


def test_unseen_gpunode_may_have_had_a_predecessor_before_the_list() -> None:
    followed = Followed()
    followed.see(closed())
    assert followed.found.unknown_since("node-a") == LISTED_AT


def test_gpunode_that_never_returns_is_forgotten() -> None:
    followed = Followed()
    followed.see(opened("a"), watching=False)
    followed.see(None)
    followed.now += KEPT_SECONDS
    followed.found.changed(
        Delta(ChangeType.DELETED, Key("", "node-b"), opened(), None), watching=True, listed_at=LISTED_AT
    )
    assert followed.ids == []


def test_nodes_deleted_without_a_watch_are_forgotten() -> None:
    followed = Followed()
    names = [f"autoscaled-{number}" for number in range(1000)]
    for name in names:
        gone = Delta(ChangeType.DELETED, Key("", name), opened("a"), None)
        followed.found.changed(gone, watching=False, listed_at=followed.now)
    assert {followed.found.unknown_since(name) for name in names} == {LISTED_AT}
    followed.now += KEPT_SECONDS
    followed.see(opened("a"))
    followed.see(None)
    assert {followed.found.unknown_since(name) for name in ("node-a", *names)} == {None}
    assert [name for name in ("node-a", *names) if followed.found.entries(name)] == ["node-a"]


def test_incompleteness_is_remembered_with_the_entries() -> None:
    followed = Followed()
    followed.see(opened("a"), watching=False)
    followed.see(None, watching=False)
    followed.now += KEPT_SECONDS - 1
    followed.see(closed())
    followed.see(None)  # before it was opened: the entries are its predecessor's
    followed.now += 100
    followed.found.changed(Delta(ChangeType.DELETED, Key("", "b"), opened(), None), watching=True, listed_at=LISTED_AT)
    assert followed.ids == ["a"]
    assert followed.found.unknown_since("node-a") == LISTED_AT


# --- what of it is written into the next one ------------------------------------------------------------------------


def carried_over(*entries: Allocation, pods: tuple[Pod, ...] = (), gpus: int = 4) -> list[str]:
    return [entry.id for entry in restore.carry_over(builders.node(gpus=gpus), entries, pods).allocations]


def a_pod(uid: str, *, gated: bool, **annotations: str) -> Pod:
    made = builders.counted(builders.pod(request="0.5", **annotations))
    made["metadata"]["uid"] = uid
    made["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}] if gated else []
    return Pod.from_manifest(made)


def test_in_flight_entries_are_carried_over() -> None:
    unborn, waiting = builders.allocation("unborn"), builders.allocation("waiting", uid="u-1")
    assert carried_over(unborn, waiting, pods=(a_pod("u-1", gated=True),)) == ["unborn", "waiting"]


def test_share_named_by_a_pod_is_not_carried_over() -> None:
    runs, gone = builders.allocation("runs", uid="u-1"), builders.allocation("gone", uid="u-2")
    assert carried_over(runs, gone, pods=(a_pod("u-1", gated=False),)) == []


def test_missing_gpu_has_no_backfill_reservation() -> None:
    assert carried_over(builders.allocation("a", "GPU-node-a-3"), gpus=1) == []


def test_a_living_pod_without_a_gpunode_is_found() -> None:
    placed = a_pod("u-1", gated=False, allocation="a", node="node-a")
    assert restore.orphaned({"node-b"}, [placed, a_pod("u-2", gated=False)]) == [placed]
    assert restore.orphaned({"node-a"}, [placed]) == []
    assert restore.orphaned((), [dataclasses.replace(placed, phase="Failed")]) == []
