import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.gpu import Gpu
from gpushare.placement import topology
from tests import builders


def card(index: int, numa_node: int | None = None) -> Gpu:
    return builders.gpu(index, numa_node=numa_node)


def ranked(*cards: Gpu, costs: tuple[float, ...] = ()) -> list[tuple[float, Gpu, str]]:
    return [(cost, one, one.uuid) for one, cost in itertools.zip_longest(cards, costs, fillvalue=0.0)]


def indices(chosen: list[tuple[float, Gpu, str]]) -> list[int]:
    return [one.index for _, one, _ in chosen]


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [(card(0, 0), card(1, 0), 0), (card(0, 0), card(1, 1), 1), (card(0), card(1), 0), (card(0), card(1, 0), 1)],
)
def test_cards_on_one_numa_node_are_together(one: Gpu, other: Gpu, apart: int) -> None:
    assert topology.distance(one, other) == topology.distance(other, one) == apart


def test_two_cards_of_one_numa_node_are_taken_although_others_cost_less() -> None:
    cards = [card(0, 0), card(1, 1), card(2, 1), card(3, 0)]
    assert indices(topology.choose(ranked(*cards, costs=(0.1, 0.2, 0.9, 1.0)), 2)) == [0, 3]
    assert indices(topology.choose(ranked(*cards, costs=(0.1, 0.2, 0.3, 1.0)), 2)) == [1, 2]


def test_among_equally_close_ones_the_cheapest_win() -> None:
    cards = [card(index, index // 4) for index in range(8)]
    assert indices(topology.choose(ranked(*cards, costs=(5, 5, 5, 5, 1, 2, 9, 0)), 2)) == [7, 4]


def test_a_pod_that_needs_more_than_one_numa_node_has_crosses_as_seldom_as_can_be() -> None:
    cards = [card(0, 0), card(1, 1), card(2, 0), card(3, 1), card(4, 0)]
    assert indices(topology.choose(ranked(*cards), 4)) in ([0, 1, 2, 4], [0, 2, 3, 4])


def test_without_anything_known_the_cheapest_are_taken() -> None:
    assert indices(topology.choose(ranked(card(0), card(1), card(2), costs=(3, 2, 1)), 2)) == [2, 1]


def test_one_card_is_the_cheapest_whatever_its_place() -> None:
    assert indices(topology.choose(ranked(card(0, 0), card(1, 1), costs=(3, 2)), 1)) == [1]


CARDS = st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(0, 3)), min_size=1, max_size=7)


@given(CARDS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_nothing_else_is_closer_and_the_order_of_the_candidates_does_not_matter(
    drawn: list[tuple[int | None, int]], count: int, draw: random.Random
) -> None:
    candidates = [(float(cost), card(index, numa), "") for index, (numa, cost) in enumerate(drawn)]
    chosen = topology.choose(candidates, count)
    assert len(chosen) == min(count, len(candidates))
    if len(chosen) == count:
        best = min(topology.penalty([one for _, one, _ in some]) for some in itertools.combinations(candidates, count))
        assert topology.penalty([one for _, one, _ in chosen]) == best
    draw.shuffle(candidates)
    assert topology.choose(candidates, count) == chosen


def test_very_many_cards_are_chosen_from_without_looking_at_every_combination() -> None:
    cards = [card(index, index % 4) for index in range(64)]
    assert topology.penalty([one for _, one, _ in topology.choose(ranked(*cards), 16)]) == 0
