import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.allocation import Memory
from gpushare.gpunode import Gpu
from gpushare.mix import Host, Mix, RequestClass
from gpushare.placement import pricing
from gpushare.placement.grid import POINTS, Columns, Ints, empty
from gpushare.placement.worth import Worth, cutting_stock
from gpushare.request import Constraints
from tests.builders import GIB

KINDS = [None, Gpu("", 0, "NVIDIA A100", 80 * GIB, (8, 0)), Gpu("", 0, "NVIDIA L4", 24 * GIB, (8, 9))]


def mix_of(weights: dict[RequestClass, float]) -> Mix:
    return Mix(weights, pods=1000)


def share(percent: int, **fields: object) -> RequestClass:
    return RequestClass(1, percent, Memory(percent=percent), **fields)  # type: ignore[arg-type]


def test_part_that_no_size_fits_is_worth_nothing() -> None:
    worth = cutting_stock(((50, 1.0),))
    assert worth[49] == 0
    assert worth[50] == pytest.approx(0.5, abs=0.02)  # a little less, as it is not a whole GPU
    assert worth[100] == 1


def test_rest_of_a_large_size_is_worth_little_without_small_requests() -> None:
    assert cutting_stock(((50, 1.0), (80, 1.0)))[20] == 0


def test_scarce_size_that_fills_the_rest_costs_little_there() -> None:
    scarce, plentiful = (cutting_stock(((20, weight), (80, 1.0)))[20] for weight in (0.1, 10.0))
    assert scarce < 0.1
    assert plentiful > 0.15


def test_whole_gpus_are_worth_the_most_without_sizes() -> None:
    assert cutting_stock(())[50] == pytest.approx(0.5, abs=0.02)
    assert cutting_stock(())[100] == 1


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(1, 100), st.floats(0.01, 1), min_size=1, max_size=8))
def test_worth_never_falls_with_room_nor_exceeds_a_gpu(weights: dict[int, float]) -> None:
    worth = cutting_stock(tuple(sorted(weights.items())))
    assert worth[0] == 0
    assert worth[100] == pytest.approx(1.0)
    assert all(low <= high + 1e-9 for low, high in itertools.pairwise(worth))


def test_gpus_are_worth_only_what_free_cpu_can_feed() -> None:
    worth = Worth(mix_of({share(100, host=Host(8000)): 1.0}), KINDS)
    gpus, kind = np.array([4.0, 4.0, 4.0]), np.array([1, 1, 1])
    usable = worth.usable(gpus, np.array([32_000.0, 16_000.0, 0.0]), np.full(3, 1e15), kind)
    assert usable == pytest.approx([4.0, 2.0, 0.0], abs=0.02)


def test_lightest_demand_is_served_first() -> None:
    light, heavy = share(100, host=Host(2000)), share(100, host=Host(14_000))
    worth = Worth(mix_of({light: 1.0, heavy: 1.0}), KINDS)
    usable = worth.usable(np.array([1.0]), np.array([1000.0]), np.array([1e15]), np.array([1]))
    assert usable == pytest.approx([0.5], abs=0.01)


def test_memory_in_bytes_is_a_larger_part_of_a_smaller_gpu() -> None:
    worth = Worth(mix_of({RequestClass(1, 10, Memory(bytes=12 * GIB)): 1.0}), KINDS)
    full, half = np.array([[100], [100]]), np.array([[50], [50]])
    columns = columns_of(compute=full, memory=half)
    large, small = worth.of_gpus(columns)[:, 0]
    assert small == pytest.approx(0.5, abs=0.02)
    assert large == pytest.approx(0.5, abs=0.1)
    columns = columns_of(compute=full, memory=np.array([[15], [15]]))
    large, small = worth.of_gpus(columns)[:, 0]
    assert small == 0
    assert large > 0.1


def columns_of(*, compute: Ints, memory: Ints) -> Columns:
    columns = empty(2, 1)
    columns.compute_percent, columns.memory_percent = compute, memory
    columns.least_percent = np.minimum(compute, memory)
    columns.kind = columns.live = np.array([[1], [2]])
    columns.memory_point = columns.kind * POINTS + memory
    return columns


def prices(
    mix: Mix,
    gpus_by_kind: tuple[float, float],
    copies: list[float] = [],  # noqa: B006
    node_gpus: tuple[int, ...] = (),
) -> pricing.Prices:
    worth = Worth(mix, KINDS, node_gpus=node_gpus)
    return pricing.prices(worth, np.array([1, 2]), np.array(gpus_by_kind), np.array([copies]).reshape(-1, 1))


def test_no_kind_is_expensive_while_all_fit() -> None:
    assert prices(mix_of({share(50): 1.0}), (100.0, 1.0)).kinds.tolist() == [0, 0, 0]


def test_kind_with_more_demand_than_free_gpus_is_expensive() -> None:
    named = mix_of({share(50): 1.0, share(50, constraints=Constraints(models=("*L4*",))): 1.0})
    assert prices(named, (90.0, 10.0)).kinds[2] > 0.3
    assert prices(named, (90.0, 10.0)).kinds[1] == 0
    assert prices(named, (10.0, 90.0)).kinds[2] < 0.05


def test_kind_is_expensive_whose_nodes_alone_are_large_enough() -> None:
    mix = mix_of({RequestClass(8, 100, Memory(percent=100)): 1.0, share(100): 4.0})
    free = (8.0, 8.0), [1.0, 0.0]
    assert prices(mix, *free, node_gpus=(0, 8, 8)).kinds.max() < 0.1
    assert prices(mix, *free, node_gpus=(0, 8, 1)).kinds[1] > 0.3


def test_a_few_pods_make_nothing_expensive_in_a_large_cluster() -> None:
    eight, l4 = RequestClass(8, 100, Memory(percent=100)), share(50, constraints=Constraints(models=("*L4*",)))
    for pods in (20, 400):
        seen = dataclasses.replace(mix_of({eight: pods / 10, l4: pods / 2, share(50): pods / 2}), gpus=2000, largest=8)
        found = prices(seen, (1800.0, 200.0), [200.0], node_gpus=(0, 8, 8))
        assert (found.kinds.max() > 0.1, found.sets.max() > 0.1) == ((pods == 400),) * 2


def test_whole_sets_become_expensive_as_they_become_rare() -> None:
    eights = mix_of({share(50): 1.0, RequestClass(8, 100, Memory(percent=100)): 1.0})
    assert prices(eights, (100.0, 0.0), [1000.0]).sets.tolist() == [0]
    assert prices(eights, (100.0, 0.0), [2.0]).sets.tolist() == [1]


def test_rare_classes_keep_fewer_spare_sets() -> None:
    eight = RequestClass(8, 100, Memory(percent=100))
    often, rarely = (mix_of({share(50): 1000.0, eight: weight}) for weight in (100.0, 0.1))
    assert prices(often, (100.0, 0.0), [4.0]).sets.tolist() == [1]
    assert prices(rarely, (100.0, 0.0), [4.0]).sets.tolist() == [0]
