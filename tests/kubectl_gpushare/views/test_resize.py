"""Views of a pod that is to be resized, or waits for it."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpushare import contract
from gpushare.gpunode import GpuNode, Resize
from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import pod_page as described
from kubectl_gpushare.views import pod_table, resize
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.sample import GIB
from tests.kubectl_gpushare.test_views import PIPE, compare

SAID = "is not resized yet: it uses 38.5Gi, more than the requested 10Gi"


def shrinking() -> tuple[GpuNode, dict[str, Any]]:
    """Return the trainer, which is to shrink from 40Gi to 10Gi and uses more."""
    node = sample.nodes()[0]
    trainer = node.allocations[0]
    share = dataclasses.replace(trainer.shares[0], shrink_to_bytes=10 * GIB)
    entries = (dataclasses.replace(trainer, shares=(share,)), *node.allocations[1:])
    word = Resize(trainer.id, 0, 40 * GIB, 77 * GIB // 2)
    manifest = sample.pod("ml/trainer", node="gpu-1", request="0.5", limit="0.8", memory="10Gi", reason=SAID)
    return dataclasses.replace(node, allocations=entries, resizes=(word,)), manifest


def plan(**asked: str) -> tuple[dict[str, Any], resize.ResizePlan]:
    node = sample.nodes()[0]
    manifest = sample.pods()[0]
    amounts = {contract.PREFIX + key: value for key, value in asked.items()}
    return manifest, resize.plan(manifest, node, node.allocations[0], amounts)


def test_a_plan_that_fits() -> None:
    compare("resize-yes", layout.page_lines(resize.page(*plan(request="0.6", memory="50Gi")), PIPE))


def test_a_plan_without_room() -> None:
    compare("resize-no-80", layout.page_lines(resize.page(*plan(request="0.8", memory="70Gi")), Terminal(columns=80)))


def test_a_plan_that_shrinks() -> None:
    compare("resize-less", layout.page_lines(resize.page(*plan(memory="10Gi")), PIPE))


def test_a_plan_that_changes_nothing() -> None:
    assert "it holds that already" in "\n".join(layout.page_lines(resize.page(*plan(memory="40960Mi")), PIPE))


def test_the_document_of_a_plan() -> None:
    document = resize.document(*plan(memory="10Gi"))
    assert document["annotations"] == {contract.MEMORY: "10Gi"}
    assert document["wouldHold"] == [
        {"containers": ["main"], "requestPercent": 50, "limitPercent": 80, "memoryBytes": 10 * GIB}
    ]
    assert (document["fits"], document["waitsFor"]) == (True, "agent")


def test_pod_with_a_pending_resize_shows_its_current_amounts() -> None:
    node, manifest = shrinking()
    taken = Snapshot((node,), (manifest,))
    pod = described.find(manifest, [node])
    compare("describe-pod-resizing", layout.page_lines(described.page(pod, taken, now=sample.NOW), PIPE))
    document = described.document(pod, taken)
    assert document["reason"] == SAID
    assert document["shares"][0]["shrinksToBytes"] == 10 * GIB


def test_top_shows_current_and_requested_amounts() -> None:
    node, manifest = shrinking()
    growing = sample.pod("ml/notebook", node="gpu-1", request="0.6", reason="is not resized yet: no room")
    table = pod_table.table(pod_table.build(Snapshot((node,), (manifest, growing))), now=sample.NOW)
    compare("top-pods-resizing", layout.draw(table, PIPE)[0])
