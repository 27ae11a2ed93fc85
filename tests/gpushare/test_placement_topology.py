import itertools
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare import placement, policies, request
from gpushare.gpunode import Gpu, GpuNode
from gpushare.placement import NodeView, together, topology
from gpushare.placement.fleet import Fleet
from tests import builders


def gpu(index: int, numa_node: int | None = None, link_group: int | None = None) -> Gpu:
    return builders.gpu(index, numa_node=numa_node, link_group=link_group)


def choose(gpus: list[Gpu], count: int, *costs: float) -> list[int]:
    priced = dict(enumerate(costs or [0.0] * len(gpus)))
    return list(topology.layout(gpus).choose(priced, count))


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (gpu(0, 0), gpu(1, 0), topology.NEAR),
        (gpu(0, 0), gpu(1, 1), topology.APART),
        (gpu(0), gpu(1), topology.NEAR),
        (gpu(0), gpu(1, 0), topology.APART),
        (gpu(0, 0, 1), gpu(1, 0, 1), topology.LINKED_AND_NEAR),
        (gpu(0, 0, 1), gpu(1, 1, 1), topology.LINKED),
        (gpu(0, 0, 1), gpu(1, 0, 2), topology.NEAR),
        (gpu(0, 0, 1), gpu(1, 1), topology.APART),
    ],
)
def test_link_is_closer_than_numa_node_is_closer_than_none(one: Gpu, other: Gpu, apart: int) -> None:
    distances = topology.layout((one, other)).distances
    assert distances[0][1] == distances[1][0] == apart


def test_two_gpus_of_one_numa_node_win_over_cheaper_ones() -> None:
    gpus = [gpu(0, 0), gpu(1, 1), gpu(2, 1), gpu(3, 0)]
    assert choose(gpus, 2, 0.1, 0.2, 0.9, 1.0) == [0, 3]
    assert choose(gpus, 2, 0.1, 0.2, 0.3, 1.0) == [1, 2]


def test_linked_gpus_win_over_one_numa_node() -> None:
    assert choose([gpu(0, 0), gpu(1, 0, 7), gpu(2, 1, 7), gpu(3, 1)], 2, 0, 9, 9, 0) == [1, 2]


def test_four_gpus_are_two_linked_pairs_of_one_numa_node() -> None:
    gpus = [gpu(index, index // 4, index // 2) for index in range(8)]
    assert choose(gpus, 4, 1, 1, 9, 9, 1, 1, 1, 9) == [4, 5, 6, 7]


def test_cheapest_of_equally_close_gpus_wins() -> None:
    assert choose([gpu(index, index // 4) for index in range(8)], 2, 5, 5, 5, 5, 1, 2, 9, 0) == [4, 7]


def test_pod_larger_than_a_numa_node_crosses_as_little_as_possible() -> None:
    gpus = [gpu(0, 0), gpu(1, 1), gpu(2, 0), gpu(3, 1), gpu(4, 0)]
    assert choose(gpus, 4) in ([0, 1, 2, 4], [0, 2, 3, 4])


def test_cheapest_gpus_win_without_topology() -> None:
    assert choose([gpu(0), gpu(1), gpu(2)], 2, 3, 2, 1) == [1, 2]


def test_single_gpu_is_the_cheapest_anywhere() -> None:
    assert choose([gpu(0, 0), gpu(1, 1)], 1, 3, 2) == [1]


PLACES = st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, None, 0, 1]))
GPUS = st.lists(st.tuples(PLACES, st.integers(0, 3)), min_size=1, max_size=7)


def gpus_of(drawn: list[tuple[tuple[int | None, int | None], int]]) -> list[Gpu]:
    return [gpu(index, *place) for index, (place, _) in enumerate(drawn)]


@pytest.mark.slow
@given(GPUS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_chosen_set_is_the_closest_in_any_order_of_costs(
    drawn: list[tuple[tuple[int | None, int | None], int]], count: int, draw: random.Random
) -> None:
    layout = topology.layout(gpus_of(drawn))
    costs = [(row, float(cost)) for row, (_, cost) in enumerate(drawn)]
    chosen = layout.choose(dict(costs), count)
    assert len(chosen) == min(count, len(drawn))
    assert layout.penalty(chosen) == min(map(layout.penalty, itertools.combinations(range(len(drawn)), len(chosen))))
    draw.shuffle(costs)
    assert layout.choose(dict(costs), count) == chosen


@pytest.mark.slow
@given(GPUS, st.integers(1, 4), st.lists(st.lists(st.sampled_from([0.1, 0.2, 0.7, np.inf]), min_size=7, max_size=7)))
def test_arrays_choose_the_same_gpus(
    drawn: list[tuple[tuple[int | None, int | None], int]], count: int, nodes: list[list[float]]
) -> None:
    layout = topology.layout(gpus_of(drawn))
    fitting = [node[: len(drawn)] for node in nodes]
    fitting = [node for node in fitting if sum(cost < np.inf for cost in node) >= count]
    if not fitting:
        return
    picks = together.choose(np.array(fitting).T, np.zeros(len(fitting), np.int64), [layout], count)
    for column, node in enumerate(fitting):
        wanted = layout.choose({row: cost for row, cost in enumerate(node) if cost < np.inf}, count)
        assert tuple(sorted(picks.rows[:, column].tolist())) == wanted
        assert picks.apart[column] == pytest.approx(layout.apart(wanted))


@pytest.mark.slow
@given(st.integers(11, 24), st.integers(3, 9), st.integers(0, 10**6))
@example(11, 9, 365638)  # sums that differ only in the last bit
def test_arrays_choose_the_same_of_very_many_gpus(gpus: int, count: int, seed: int) -> None:
    draw = random.Random(seed)
    layout = topology.layout([gpu(index, draw.randrange(4), draw.choice([None, 0, 1])) for index in range(gpus)])
    nodes = [[draw.choice([0.1, 0.5, 0.6, 0.9, np.inf]) for _ in range(gpus)] for _ in range(3)]
    nodes = [node for node in nodes if sum(cost < np.inf for cost in node) >= count]
    if not nodes:
        return
    picks = together.choose(np.array(nodes).T, np.zeros(len(nodes), np.int64), [layout], count)
    for column, node in enumerate(nodes):
        wanted = layout.choose({row: cost for row, cost in enumerate(node) if cost < np.inf}, count)
        assert tuple(sorted(picks.rows[:, column].tolist())) == wanted


def test_very_many_gpus_need_no_exhaustive_search() -> None:
    layout = topology.layout([gpu(index, index % 4) for index in range(64)])
    chosen = layout.choose(dict.fromkeys(range(64), 0.0), 16)
    assert layout.penalty(chosen) == topology.NEAR * 16 * 15 // 2


def two_sockets(name: str, *taken: int) -> GpuNode:
    gpus = tuple(builders.gpu(index, node=name, numa_node=index // 2) for index in range(4))
    entries = [builders.allocation(f"a{index}", gpus[index].uuid, request=100, memory_gib=80) for index in taken]
    return GpuNode(name, gpus, tuple(entries))


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_pod_with_two_gpus_gets_one_socket(policy: str) -> None:
    asked = request.parse(builders.pod(gpus="2", policy=policy))
    view = NodeView.from_node(two_sockets("node-a", 0))
    fleet = Fleet()
    fleet.update(view)
    for answer in (placement.place([view], asked), fleet.place(asked), fleet.place_on(view, asked)):
        assert isinstance(answer, placement.Placement)
        assert answer.shares[0].gpu_uuids == ("GPU-node-a-2", "GPU-node-a-3")


@pytest.mark.parametrize("policy", ["fragmentation", "pack"])
def test_between_equal_nodes_gpus_on_one_socket_win(policy: str) -> None:
    asked = request.parse(builders.pod(gpus="2", policy=policy))
    views = [NodeView.from_node(two_sockets("node-a", 0, 2)), NodeView.from_node(two_sockets("node-b", 0, 1))]
    fleet = Fleet()
    for view in views:
        fleet.update(view)
    for answer in (placement.place(views, asked), fleet.place(asked)):
        assert isinstance(answer, placement.Placement)
        assert answer.node == "node-b"
