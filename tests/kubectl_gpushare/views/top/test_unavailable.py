"""`top` tells nodes that take no pods, and shows as free and as largest what a pod would get there: nothing."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from gpushare import contract
from gpushare.gpunode import Condition, GpuNode
from gpushare.whatif import unavailable
from gpushare.whatif.world import World
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import page_layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_summary
from kubectl_gpushare.views.describe import gpu_page
from kubectl_gpushare.views.top import gpu_table, node_table
from tests import builders

NODE = builders.node("node-a", gpus=2)


def machine(*, ready: str = "True", percent: str = "200", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "node-a", "labels": {contract.HOSTNAME_LABEL: "node-a"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "8", "pods": "110", **builders.offered(2), contract.RESOURCE_PERCENT: percent},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def shown(node: GpuNode, *machines: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The node's first GPU and the node, as documents."""
    taken = Snapshot((node,), node_objects=machines)
    options = Options()
    first = next(iter(gpu_table.listing(taken, (), options, now=0).document()["items"]))
    return first, next(iter(node_table.listing(taken, (), options, now=0).document()["items"]))


@pytest.mark.parametrize(
    ("machines", "word", "said"),
    [
        ((machine(unschedulable=True),), "NodeCordoned", "the node node-a is cordoned: kubectl uncordon node-a"),
        ((machine(ready="Unknown"),), "NotReady", "the node node-a is not ready: no pod starts there"),
        (
            (machine(percent="0"),),
            "NoAgent",
            "the agent of node-a does not run: its kubelet offers no gpushare.io/gpu-percent",
        ),
        ((), "NoNode", "there is no Node node-a any more"),
    ],
)
def test_a_node_that_takes_no_pods_is_told_and_nothing_fits_there(machines: Any, word: str, said: str) -> None:
    gpu, row = shown(NODE, *machines)
    assert (gpu["status"], gpu["reason"]) == ([word], said)
    assert (row["status"], row["reason"]) == ([word], said)
    assert row["largest"] == {"gpu": "", "computePercent": 0, "memoryBytes": 0}
    assert (row["compute"]["freePercent"], row["memory"]["freeBytes"]) == (0, 0)
    assert World([NODE], machines).fragmentation().largest_percent == 0


def test_an_agent_that_was_told_to_stop_is_away_before_the_kubelet_tells_of_it() -> None:
    state = Condition(contract.CONDITION_READY, "False", contract.REASON_AGENT_STOPPED, "the node's agent has stopped")
    gpu, row = shown(dataclasses.replace(NODE, conditions=(state,)), machine())
    assert (gpu["status"], gpu["reason"]) == (["NoAgent"], "node-a: the node's agent has stopped")
    assert (row["status"], row["compute"]["freePercent"]) == (["NoAgent"], 0)


def test_a_node_that_takes_pods_is_ready() -> None:
    gpu, row = shown(NODE, machine())
    assert (gpu["status"], row["status"], row["compute"]["freePercent"]) == (["Ready"], ["Ready"], 200)


def test_a_node_without_gpus_for_shares_says_nothing_of_its_agent() -> None:
    cordoned = dataclasses.replace(NODE, gpus=tuple(dataclasses.replace(gpu, cordoned=True) for gpu in NODE.gpus))
    assert shown(cordoned, machine(percent="0"))[0]["status"] == ["Cordoned"]


def test_where_nodes_are_not_known_nothing_is_said_of_them() -> None:
    entry = next(iter(gpu_table.listing(Snapshot((NODE,)), (), Options(), now=0).document()["items"]))
    assert entry["status"] == ["Ready"]


def test_beside_a_pod_with_an_exclusion_label_there_is_no_largest_share() -> None:
    alone = builders.allocation("a1", "GPU-node-a-0", request=30, memory_gib=24, exclusion="mine")
    more = builders.allocation("a2", "GPU-node-a-1", request=90, memory_gib=72)
    gpu, row = shown(dataclasses.replace(NODE, allocations=(alone, more)), machine())
    assert gpu["status"] == ["Excluding"]
    assert row["largest"] == {"gpu": "node-a/1", "computePercent": 10, "memoryBytes": 8 * builders.GIB}


def test_free_is_compute_and_memory_and_no_mean_of_both() -> None:
    full = builders.allocation("a1", "GPU-node-a-0", request=100, memory_gib=20)
    gpus = gpu_table.build([dataclasses.replace(NODE, allocations=(full,))])
    made = gpu_table.table(gpus)
    place = [column.header for column in made.columns].index("FREE")
    assert [row[place] for row in made.rows] == ["0+60Gi", "1+80Gi"]
    assert made.totals is not None
    assert made.totals["FREE"] == "1+140Gi"


def test_describe_says_the_same_as_top() -> None:
    taken = Snapshot((NODE,), node_objects=(machine(percent="0"),))
    text = "\n".join(page_layout.lines(gpu_page.node(NODE, taken, now=0), Terminal()))
    assert re.search(r"^Status: +NoAgent\nReason: +the agent of node-a does not run", text, re.MULTILINE)
    assert re.search(r"^Free: +nothing on 2 GPUs$", text, re.MULTILINE)
    assert "Ready" not in text
    gpu = gpu_summary.summarize([NODE], unavailable.find([NODE], taken.node_objects))[0]
    text = "\n".join(page_layout.lines(gpu_page.gpu(gpu, NODE, taken, now=0), Terminal()))
    assert re.search(r"^Status: +NoAgent\nReason: +the agent of node-a does not run", text, re.MULTILINE)
    assert re.search(r"^Free: +nothing$", text, re.MULTILINE)
