"""With GPUNode updates in any order, number and delay, the newest counts and pending changes stay visible."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from gpushare import codec, ledger
from gpushare.gpunode import GpuNode
from tests import builders
from webhook.store.node_ledger import NodeLedger

pytestmark = pytest.mark.slow


def document(version: int) -> dict[str, Any]:
    """Return a version of a node, where each version has one more allocation."""
    node = builders.node(gpus=1)
    for number in range(version):
        node = ledger.reserve(node, builders.allocation(f"a{number}", request=5, memory_gib=1))
    made = codec.to_document(node)
    made["metadata"].update(resourceVersion=str(version), uid="u")
    return made


def taking(node: GpuNode) -> GpuNode:
    if any(entry.id == "ours" for entry in node.allocations):
        return node
    return ledger.reserve(node, builders.allocation("ours", request=5, memory_gib=1))


@hypothesis.given(st.lists(st.integers(1, 8), min_size=1, max_size=20))
async def test_newest_state_is_used_and_pending_changes_stay(versions: list[int]) -> None:
    made = NodeLedger(document(0))
    made.add(taking)
    newest = 0
    for version in versions:
        assert made.see(document(version)) == (version > newest)
        newest = max(newest, version)
        assert [entry.id for entry in made.node.allocations] == [f"a{number}" for number in range(newest)]
        assert [entry.id for entry in made.view.node.allocations][-1] == "ours"
