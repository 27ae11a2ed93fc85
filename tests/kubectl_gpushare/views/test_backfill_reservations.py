"""A backfill reservation is shown as such: not as a running pod, not as free capacity, and not as a share."""

from __future__ import annotations

import dataclasses

from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import GpuNode
from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_page as describe
from kubectl_gpushare.views import gpu_summary, gpu_table, node_table
from kubectl_gpushare.views import pod_page as describe_pod
from tests import builders
from tests.kubectl_gpushare import sample

PLAIN = Terminal(columns=None, colours=False, unicode=True)


def held() -> GpuNode:
    """Return a node on whose first GPU a pod has a half, and the other half is reserved for another pod."""
    share = GivenShare(("main",), ("GPU-node-a-0",), 50, 100, 40 * builders.GIB)
    runs = builders.allocation("a1", request=50, memory_gib=40, uid="u-1")
    hold = Allocation(f"{contract.BACKFILL_PREFIX}a2", PodRef("ml", "large", "u-2"), (share,))
    return dataclasses.replace(builders.node(gpus=2), allocations=(runs, hold), created="2026-03-01T09:00:00Z")


def test_list_names_the_reservations_pod_without_counting_it() -> None:
    first, second = gpu_table.build(Snapshot((held(),)))
    assert (first.statuses, second.statuses) == (("Held",), ())
    document = gpu_table.item(first)
    assert document["pods"] == 1
    assert document["heldFor"] == ["ml/large"]
    assert document["compute"]["freePercent"] == 0
    assert document["reason"] == "freed capacity is reserved for ml/large"
    (row,) = node_table.build(Snapshot((held(),)))
    assert row.statuses == ("Held:1",)
    assert row.total.pods == 1
    assert row.reason == "node-a/0: freed capacity is reserved for ml/large"


def test_description_lists_the_reservation_with_the_shares() -> None:
    gpu = gpu_summary.summarize([held()])[0]
    text = "\n".join(layout.page_lines(describe.gpu(gpu, held(), Snapshot((held(),), ()), now=sample.NOW), PLAIN))
    assert "held for ml/large" in text
    assert "Held For:" in text
    assert "1 pod" in text


def test_pod_with_a_backfill_reservation_is_not_placed() -> None:
    waiting = builders.pod("large", namespace="ml", request="1", node="node-a")
    waiting["metadata"]["uid"] = "u-2"
    waiting["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    pod = describe_pod.find(waiting, [held()])
    assert (pod.entry, pod.placement) == (None, "Waiting")


def test_a_node_has_an_age_and_labels() -> None:
    described = dataclasses.replace(held(), labels={"zone": "a"})
    page = describe.node(described, Snapshot((described,), ()), now=sample.NOW)
    assert any(line.split() == ["Age:", "3h"] for line in layout.page_lines(page, PLAIN))
    (row,) = node_table.build(Snapshot((described,)))
    assert node_table.item(row)["labels"] == {"zone": "a"}
    assert node_table.item(row)["created"] == "2026-03-01T09:00:00Z"
