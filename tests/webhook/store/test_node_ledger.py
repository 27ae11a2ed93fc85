"""Group commit: which changes wait, which are written, and what the next placement sees."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import codec, errors, ledger
from gpushare.gpunode import GpuNode
from tests import builders
from webhook.store.ledger_store import Change
from webhook.store.node_ledger import NodeLedger


def document(*held: str, version: int = 1, uid: str = "u") -> dict[str, Any]:
    node = builders.node(gpus=1)
    for identity in held:
        node = taking(identity)(node)
    made = codec.to_document(node)
    made["metadata"].update(resourceVersion=str(version), uid=uid)
    made["spec"]["future"] = "field"
    return made


def taking(identity: str, request: int = 40) -> Change:
    def change(node: GpuNode) -> GpuNode:
        if any(entry.id == identity for entry in node.allocations):
            return node
        return ledger.reserve(node, builders.allocation(identity, request=request, memory_gib=1))

    return change


def ids(node: GpuNode) -> list[str]:
    return [entry.id for entry in node.allocations]


async def test_view_includes_waiting_changes_and_the_current_write() -> None:
    made = NodeLedger(document())
    made.add(taking("a"))
    made.begin()
    made.add(taking("b"))
    assert ids(made.view.node) == ["a", "b"]
    assert ids(made.node) == []


async def test_foreign_writes_do_not_hide_pending_changes() -> None:
    made = NodeLedger(document())
    made.add(taking("a", 10))
    made.begin()
    made.add(taking("b", 10))
    made.see(document("x", version=2))
    assert ids(made.view.node) == ["x", "a", "b"]


async def test_change_that_conflicts_with_pending_ones_is_refused_at_once() -> None:
    made = NodeLedger(document())
    made.add(taking("a"))
    made.add(taking("b"))
    with pytest.raises(errors.LedgerError, match="does not have enough left"):
        made.add(taking("c"))
    assert ids(made.view.node) == ["a", "b"]


async def test_one_write_carries_all_pending_changes() -> None:
    made = NodeLedger(document())
    waiting = [made.add(taking("a")), made.add(taking("b"))]
    drafted, carried = made.draft(made.begin())
    assert drafted is not None
    assert [change.done for change in carried] == waiting
    assert [entry["id"] for entry in drafted["spec"]["allocations"]] == ["a", "b"]
    assert drafted["spec"]["future"] == "field"
    assert not made.has_waiting


async def test_conflict_refuses_only_changes_that_no_longer_fit() -> None:
    made = NodeLedger(document())
    first, second = made.add(taking("a")), made.add(taking("b"))
    batch = made.begin()
    made.see(document("x", version=2))
    drafted, carried = made.draft(batch)
    assert drafted is not None
    assert [entry["id"] for entry in drafted["spec"]["allocations"]] == ["x", "a"]
    assert [change.done for change in carried] == [first]
    assert isinstance(second.exception(), errors.LedgerError)


async def test_cancelled_change_is_not_written() -> None:
    made = NodeLedger(document())
    made.add(taking("a")).cancel()
    made.add(taking("b"))
    drafted, _ = made.draft(made.begin())
    assert drafted is not None
    assert [entry["id"] for entry in drafted["spec"]["allocations"]] == ["b"]


async def test_a_change_that_is_there_already_is_not_written_again() -> None:
    made = NodeLedger(document("a"))
    made.add(taking("a"))
    drafted, carried = made.draft(made.begin())
    assert drafted is None
    assert len(carried) == 1


async def test_older_version_from_a_lagging_watch_is_ignored() -> None:
    made = NodeLedger(document("a", version=10))
    assert not made.see(document(version=9))
    assert ids(made.view.node) == ["a"]
    assert made.see(document(version=3, uid="made-anew"))
    assert ids(made.view.node) == []


async def test_older_version_from_a_restored_etcd_is_accepted() -> None:
    made = NodeLedger(document("a", version=10))
    known = made.document
    assert made.see(document(version=9), instead_of=known), "etcd was restored"
    assert ids(made.view.node) == []
    assert not made.see(document("a", version=8), instead_of=known), "something else came meanwhile"
    known = made.document
    assert not made.see(document(version=9), instead_of=known), "it is the same"
    assert made.document is known


async def test_end_of_a_write_removes_failed_changes_from_the_view() -> None:
    made = NodeLedger(document())
    done = made.add(taking("a"))
    made.begin()
    done.set_exception(errors.LedgerError("no"))
    done.exception()
    made.end()
    assert ids(made.view.node) == []
