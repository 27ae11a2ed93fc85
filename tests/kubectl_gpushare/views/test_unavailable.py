"""`top` marks nodes that take no pods, and shows no free capacity and no largest share there."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from gpushare import contract
from gpushare.gpunode import Condition, GpuNode
from gpushare.whatif import unavailable_nodes
from gpushare.whatif.world import World
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_page, gpu_summary, gpu_table, node_table
from tests import builders

NODE = builders.node("node-a", gpus=2)


def node_object(*, ready: str = "True", percent: str = "200", **spec: Any) -> dict[str, Any]:
    return builders.node_object(gpus=2, ready=ready, allocatable={contract.RESOURCE_PERCENT: percent}, spec=spec)


def shown(node: GpuNode, *node_objects: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the node's first GPU and the node, as documents."""
    taken = Snapshot((node,), node_objects=node_objects)
    options = Options()
    first = next(iter(gpu_table.listing(taken, (), options, now=0).document()["items"]))
    return first, next(iter(node_table.listing(taken, (), options, now=0).document()["items"]))


@pytest.mark.parametrize(
    ("node_objects", "word", "said"),
    [
        ((node_object(unschedulable=True),), "NodeCordoned", "node node-a is cordoned: kubectl uncordon node-a"),
        ((node_object(ready="Unknown"),), "NotReady", "node node-a is not ready, so no pod can start there"),
        (
            (node_object(percent="0"),),
            "NoAgent",
            "the agent of node-a is not running: its kubelet offers no gpushare.io/gpu-percent",
        ),
        ((), "NoNode", "Node node-a no longer exists"),
    ],
)
def test_unavailable_node_is_named_and_nothing_fits_there(node_objects: Any, word: str, said: str) -> None:
    gpu, row = shown(NODE, *node_objects)
    assert (gpu["status"], gpu["reason"]) == ([word], said)
    assert (row["status"], row["reason"]) == ([word], said)
    assert row["largest"] == {"gpu": "", "computePercent": 0, "memoryBytes": 0}
    assert (row["compute"]["freePercent"], row["memory"]["freeBytes"]) == (0, 0)
    assert World([NODE], node_objects).fragmentation().largest_percent == 0


def test_stopping_agent_makes_its_node_unavailable_at_once() -> None:
    state = Condition(contract.CONDITION_READY, "False", contract.REASON_AGENT_STOPPED, "the node's agent has stopped")
    gpu, row = shown(dataclasses.replace(NODE, conditions=(state,)), node_object())
    assert (gpu["status"], gpu["reason"]) == (["NoAgent"], "node-a: the node's agent has stopped")
    assert (row["status"], row["compute"]["freePercent"]) == (["NoAgent"], 0)


def test_a_node_that_takes_pods_is_ready() -> None:
    gpu, row = shown(NODE, node_object())
    assert (gpu["status"], row["status"], row["compute"]["freePercent"]) == (["Ready"], ["Ready"], 200)


def test_node_without_shared_gpus_is_not_reported_as_without_agent() -> None:
    cordoned = dataclasses.replace(NODE, gpus=tuple(dataclasses.replace(gpu, cordoned=True) for gpu in NODE.gpus))
    assert shown(cordoned, node_object(percent="0"))[0]["status"] == ["Cordoned"]


@pytest.mark.parametrize(("owner", "word"), [("p1", "NoAgent"), (contract.OTHER_OWNER, "Ready")])
def test_a_node_whose_borrowed_gpu_is_given_back_has_no_agent_if_it_offers_none(owner: str, word: str) -> None:
    """An agent offers shares of a placeholder's GPU until the placeholder has ended, and none of the other plugin's."""
    gpus = tuple(dataclasses.replace(gpu, owner=owner, unowned=True) for gpu in NODE.gpus)
    gpu, row = shown(dataclasses.replace(NODE, gpus=gpus), node_object(percent="0"))
    assert row["status"] == [word]
    assert ("the agent of node-a is not running" in gpu["reason"]) is (word == "NoAgent")


def test_unknown_nodes_are_not_reported_as_unavailable() -> None:
    entry = next(iter(gpu_table.listing(Snapshot((NODE,)), (), Options(), now=0).document()["items"]))
    assert entry["status"] == ["Ready"]


def test_no_largest_share_next_to_an_exclusion_label() -> None:
    alone = builders.allocation("a1", "GPU-node-a-0", request=30, memory_gib=24, exclusion="mine")
    more = builders.allocation("a2", "GPU-node-a-1", request=90, memory_gib=72)
    gpu, row = shown(dataclasses.replace(NODE, allocations=(alone, more)), node_object())
    assert gpu["status"] == ["Excluding"]
    assert row["largest"] == {"gpu": "node-a/1", "computePercent": 10, "memoryBytes": 8 * builders.GIB}


def test_free_shows_compute_and_memory() -> None:
    full = builders.allocation("a1", "GPU-node-a-0", request=100, memory_gib=20)
    gpus = gpu_table.build(Snapshot((dataclasses.replace(NODE, allocations=(full,)),)))
    made = gpu_table.table(gpus)
    place = [column.header for column in made.columns].index("FREE")
    assert [row[place] for row in made.rows] == ["0+60Gi", "1+80Gi"]
    assert made.totals is not None
    assert made.totals["FREE"] == "1+140Gi"


def test_describe_says_the_same_as_top() -> None:
    taken = Snapshot((NODE,), node_objects=(node_object(percent="0"),))
    text = "\n".join(layout.page_lines(gpu_page.node(NODE, taken, now=0), Terminal()))
    assert re.search(r"^Status: +NoAgent\nReason: +the agent of node-a is not running", text, re.MULTILINE)
    assert re.search(r"^Free: +nothing on 2 GPUs$", text, re.MULTILINE)
    assert "Ready" not in text
    gpu = gpu_summary.summarize([NODE], absent=unavailable_nodes.find([NODE], taken.node_objects))[0]
    text = "\n".join(layout.page_lines(gpu_page.gpu(gpu, NODE, taken, now=0), Terminal()))
    assert re.search(r"^Status: +NoAgent\nReason: +the agent of node-a is not running", text, re.MULTILINE)
    assert re.search(r"^Free: +nothing$", text, re.MULTILINE)
