"""BUSY is consistent in the lines of GPUs, nodes and pods, and unknown usage is never 0."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode
from kubectl_gpushare.output.values import UNKNOWN, Cell, Table
from kubectl_gpushare.source import live_usage
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_table, node_table, pod_table
from tests import builders

NODES = ("node-a", "node-b")
GPUS = 3

# A pod: its node, its GPUs, and the agent's figure for each of them; None: not measured.
RATIOS = st.none() | st.floats(0, 1)
PODS = st.lists(
    st.tuples(st.sampled_from(NODES), st.dictionaries(st.integers(0, GPUS - 1), RATIOS, min_size=1)), max_size=6
)


def cluster(pods: list[tuple[str, dict[int, float | None]]], answering: frozenset[str]) -> Snapshot:
    lines: dict[str, list[str]] = {name: [] for name in NODES}
    entries: dict[str, list[Allocation]] = {name: [] for name in NODES}
    for number, (node, ratios) in enumerate(pods):
        uuids = [f"GPU-{node}-{index}" for index in ratios]
        entries[node].append(builders.allocation(f"p{number}", *uuids, request=5, memory_gib=1, pod_name=f"p{number}"))
        for index, ratio in ratios.items():
            labels = f'{{node="{node}",namespace="default",pod="p{number}",containers="main",gpu="GPU-{node}-{index}"}}'
            lines[node].append(f"{live_usage.MEMORY}{labels} 1")
            lines[node] += [] if ratio is None else [f"{live_usage.COMPUTE}{labels} {ratio}"]
    nodes = [dataclasses.replace(builders.node(name, gpus=GPUS), allocations=tuple(entries[name])) for name in NODES]
    return Snapshot(tuple(nodes), None, usage=live_usage.parse({name: "\n".join(lines[name]) for name in answering}))


def tables(snapshot: Snapshot) -> list[Table]:
    def nodes() -> tuple[GpuNode, ...]:
        return snapshot.nodes

    return [
        gpu_table.table(gpu_table.build(Snapshot(tuple(nodes()), usage=snapshot.usage)), with_used=True),
        node_table.table(node_table.build(Snapshot(tuple(nodes()), usage=snapshot.usage)), with_used=True),
        pod_table.table(pod_table.build(snapshot), now=0.0, with_used=True),
    ]


def busy(table: Table) -> list[str]:
    """Return the cells of BUSY, the total last."""
    place = [column.header for column in table.columns].index("BUSY")
    cells = [row[place] for row in (*table.rows, table.totals_row or ())]
    return [cell.text if isinstance(cell, Cell) else cell for cell in cells]


def amount(text: str) -> float:
    return 0.0 if text in {"", UNKNOWN} else float(text.removeprefix("≥").partition("/")[0])


@given(PODS, st.frozensets(st.sampled_from(NODES)))
def test_law_totals_of_gpus_nodes_and_pods_agree(
    pods: list[tuple[str, dict[int, float | None]]], answering: frozenset[str]
) -> None:
    snapshot = cluster(pods, answering)
    gpus, nodes, of_pods = map(busy, tables(snapshot))
    assert gpus[-1] == nodes[-1]
    assert amount(of_pods[-1]) == amount(gpus[-1])
    measured = all(node in answering and None not in ratios.values() for node, ratios in pods)
    for lines in (gpus, nodes, of_pods):
        assert abs(sum(map(amount, lines[:-1])) - amount(lines[-1])) <= 0.005 * len(lines)
        assert amount(lines[-1]) <= len(NODES) * GPUS
    assert (("≥" in of_pods[-1]) or of_pods[-1] == UNKNOWN) == (not measured)


def test_busy_gpu_next_to_an_idle_one_is_full_in_every_table() -> None:
    gpus, nodes, of_pods = map(busy, tables(cluster([("node-a", {0: 1.0}), ("node-a", {0: 0.0})], frozenset(NODES))))
    assert gpus == ["1/1", "0/1", "0/1", "0/1", "0/1", "0/1", "1/6"]
    assert nodes == ["1/3", "0/3", "1/6"]
    assert of_pods == ["1/1", "0/1", "1/1"]


def test_unmeasured_usage_makes_a_sum_a_lower_bound() -> None:
    snapshot = cluster([("node-a", {0: None}), ("node-a", {0: 0.0}), ("node-a", {1: 0.34})], frozenset(NODES))
    gpus, nodes, of_pods = map(busy, tables(snapshot))
    assert gpus == [UNKNOWN, "0.34/1", "0/1", "0/1", "0/1", "0/1", "≥0.34/6"]
    assert nodes == ["≥0.34/3", "0/3", "≥0.34/6"]
    assert of_pods == [UNKNOWN, "0/1", "0.34/1", "≥0.34/2"]
