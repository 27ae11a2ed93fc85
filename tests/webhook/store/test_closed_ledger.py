"""A recreated GPUNode has no ledger, and only the placer, which knows its pods, opens it."""

from __future__ import annotations

import asyncio

import pytest

from gpushare import codec, errors, ledger
from gpushare.gpunode import GpuNode
from tests import builders
from webhook.store import node_ledger
from webhook.store.node_ledger import NodeLedger


def reserve(node: GpuNode) -> GpuNode:
    return ledger.reserve(node, builders.allocation("held", "GPU-node-a-0", request=0, memory_gib=0))


def documents() -> tuple[dict[str, object], dict[str, object]]:
    """Return an open GPUNode, and the closed one that replaces it."""
    opened = codec.to_document(builders.node())
    opened["metadata"].update(uid="first", resourceVersion="1")
    closed = {**opened, "metadata": {**opened["metadata"], "uid": "second", "resourceVersion": "2"}}
    closed["spec"] = {key: value for key, value in opened["spec"].items() if key != "allocations"}
    return opened, closed


async def test_closed_gpunode_accepts_no_writes() -> None:
    _, closed = documents()
    node = NodeLedger(closed)
    with pytest.raises(errors.LedgerError, match=node_ledger.CLOSED):
        node.add(reserve)
    done = node.add(lambda known: known)  # which changes nothing
    assert node.draft(node.begin())[0] is None
    assert not done.done()


async def test_change_decided_before_closing_is_refused() -> None:
    opened, closed = documents()
    node = NodeLedger(opened)
    done = node.add(reserve)
    batch = node.begin()
    node.see(closed, instead_of=opened)
    document, carried = node.draft(batch)
    assert (document, carried) == (None, [])
    with pytest.raises(errors.LedgerError, match=node_ledger.CLOSED):
        await asyncio.wait_for(done, 5)
