"""A pod whose init container and app use a GPU one after the other is shown with its allocation, not with the sum."""

from __future__ import annotations

from gpushare import ledger, placement, request
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_page as describe
from kubectl_gpushare.views import gpu_summary, gpu_table, pod_table
from tests import builders
from tests.kubectl_gpushare import sample

PLAIN = Terminal(columns=None, colours=False, unicode=True)
POD = builders.in_turn(warm="0.8", main="0.7")


def holding() -> GpuNode:
    asked, node = request.parse(POD), builders.node(gpus=1)
    outcome = placement.place(builders.views(node), asked)
    assert isinstance(outcome, placement.Placement)
    holder = PodRef("default", "trainer", "u-1")
    return ledger.reserve(node, outcome.allocation(asked, allocation_id="a1", pod=holder, reserved_until=None))


def test_lists_show_the_larger_share() -> None:
    (gpu,) = gpu_table.build(Snapshot((holding(),)))
    assert gpu_table.item(gpu)["compute"]["freePercent"] == 20
    row = pod_table.PodRow("default", "trainer", POD, holding().allocations[0], (gpu,), "Running")
    assert (row.request_percent, row.memory_bytes) == (80, 64 * builders.GIB)


def test_description_marks_the_share_of_init_containers() -> None:
    (gpu,) = gpu_summary.summarize([holding()])
    text = "\n".join(layout.page_lines(describe.gpu(gpu, holding(), Snapshot((holding(),), ()), now=sample.NOW), PLAIN))
    assert "0.8 of 1" in text
    assert "warm (init)" in text
    assert "main (init)" not in text
