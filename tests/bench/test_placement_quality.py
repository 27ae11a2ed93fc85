"""The placement bench, on a cluster made up here: it does with the product's own engine what the webhook does."""

from __future__ import annotations

import math

import pytest

from gpushare.mix import Mix
from gpushare.placement.fleet import Fleet
from tests.bench.openb_modules import known_policies, links, own_policies, trace, worlds

NODES = [trace.Node(f"node-{number}", 96_000, 768 * 1024, 8, "A100") for number in range(10)]
HALF = trace.Pod(4000, 16_384, 1, 50, ())


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch) -> list[Mix]:
    """The mixes that the engine was taught."""
    taught: list[Mix] = []
    monkeypatch.setattr(Fleet, "learn", lambda _, mix: taught.append(mix))
    return taught


def test_placement_learns_from_the_pods_that_have_come(lessons: list[Mix]) -> None:
    scheduler = own_policies.Gpushare("fragmentation", NODES)
    for _ in range(60):
        assert scheduler.place(HALF) is not None
    assert [mix.pods for mix in lessons] == [10, 20, 30, 40, 53]


def test_gpus_of_a_linked_node_are_linked_so_many_by_so_many() -> None:
    node = trace.Node("a", 96_000, 768 * 1024, 8, "H100", linked=4)
    node_links = links.Links([node, NODES[0]])
    for gpus in ((0, 1, 2, 3), (0, 1, 4, 5), (6, 7)):
        node_links.add(trace.Placed(0, gpus))
    node_links.add(trace.Placed(1, (0, 4)))  # a node without links says nothing
    assert node_links.part(4) == 0.5
    assert node_links.part(2) == 1.0
    assert math.isnan(node_links.part(8))


def test_a_pod_may_ask_for_another_part_of_the_memory_than_of_the_compute() -> None:
    much_memory = trace.Pod(0, 0, 1, 10, (), gpu_memory_percent=60)
    assert much_memory.size == 35
    known = known_policies.KnownPolicy("best-fit", NODES[:1], [much_memory], 42)
    own = own_policies.Gpushare("fragmentation", NODES[:1])
    for scheduler in (known, own):
        placed = [scheduler.place(much_memory) for _ in range(9)]
        assert placed[-1] is None  # two do not fit on one GPU
        assert None not in placed[:-1]


def test_random_worlds_need_no_lists_and_are_drawn_by_the_seed() -> None:
    nodes, pods = worlds.load(None, "random-0", 1)
    assert (nodes, pods) == worlds.load(None, "random-0", 1)
    other = worlds.load(None, "random-0", 2)
    assert other[0] == nodes
    assert other[1] != pods
    assert sum(pod.size for pod in pods) >= trace.MAX_LOAD * 100 * sum(node.gpus for node in nodes)
