"""Charges of shares: four quarters are a GPU, and no GPU costs more than one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import gpu_capacity, ledger, placement, policies, request
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode, Mode
from gpushare.placement import Placement
from tests import builders


def node_of(*shares: tuple[int, int]) -> GpuNode:
    """Return a node with one GPU of 80 GiB and shares of these percentages and GiB."""
    node = builders.node(gpus=1)
    for number, (percent, memory_gib) in enumerate(shares):
        entry = builders.allocation(f"a{number}", request=percent, memory_gib=memory_gib, uid=f"u{number}")
        node = ledger.reserve(node, entry)
    return node


def parts(node: GpuNode) -> list[float]:
    return [round(charge.part, 4) for charge in gpu_capacity.charges(node)]


def test_four_quarters_add_up_to_a_gpu() -> None:
    assert parts(node_of(*[(25, 20)] * 4)) == [0.25] * 4


def test_larger_of_compute_and_memory_counts() -> None:
    assert parts(node_of((10, 40), (30, 8))) == [0.5, 0.3]


def test_unlike_neighbours_are_scaled_down_to_one_gpu() -> None:
    assert parts(node_of((90, 8), (10, 72))) == [0.5, 0.5]


def test_share_is_charged_on_each_of_its_existing_gpus() -> None:
    entry = builders.allocation("a", "GPU-node-a-0", "GPU-node-a-1", request=50, memory_gib=8)
    node = ledger.reserve(builders.node(gpus=2), entry)
    assert [charge.gpu_uuid for charge in gpu_capacity.charges(node)] == ["GPU-node-a-0", "GPU-node-a-1"]
    assert parts(dataclasses.replace(node, gpus=node.gpus[:1])) == [0.5]


def test_shares_used_in_turn_cost_as_much_as_the_larger() -> None:
    asked = request.parse(builders.in_turn(warm="0.8", main="0.4"))
    outcome = placement.place(builders.views(builders.node(gpus=1)), asked)
    assert isinstance(outcome, Placement)
    entry = outcome.allocation(asked, allocation_id="a", pod=PodRef("default"), reserved_until=None)
    assert parts(ledger.reserve(builders.node(gpus=1), entry)) == [0.5333, 0.2667]


def divided(node: GpuNode) -> dict[str, float]:
    return {state.value: round(part, 4) for (_, state), part in gpu_capacity.divide(node, policies.default_mix).items()}


def test_free_capacity_is_divided_into_usable_and_fragmented() -> None:
    assert divided(builders.node(gpus=1)) == {"free": 1.0}
    # 40 % is left: too little for a half or a whole GPU, which are half of the requests
    split = divided(node_of((60, 48)))
    assert split == {"allocated": 0.6, "free": 0.2, "fragmented": 0.2}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"cordoned": True}, "cordoned"),
        ({"healthy": False}, "unhealthy"),
        ({"mode": Mode.EXCLUSIVE}, "other-mode"),
        ({"pending_mode": Mode.MIG}, "other-mode"),
    ],
)
def test_free_capacity_of_a_closed_gpu_gets_its_reason(change: dict[str, object], state: str) -> None:
    node = node_of((25, 20))
    node = dataclasses.replace(node, gpus=(dataclasses.replace(node.gpus[0], **change),))  # type: ignore[arg-type]
    assert divided(node) == {"allocated": 0.25, state: 0.75}


def test_backfill_reservation_counts_as_held() -> None:
    node = builders.node(gpus=1)
    entry = dataclasses.replace(builders.allocation("hold-x", request=50, memory_gib=8), id="hold-x")
    assert divided(ledger.reserve(node, entry))["held"] == 0.5


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 80)), max_size=6), st.sampled_from(list(Mode)))
def test_parts_of_a_node_add_up_to_its_gpus(shares: list[tuple[int, int]], mode: Mode) -> None:
    node = builders.node(gpus=2, mode=mode)
    for number, (percent, memory_gib) in enumerate(shares):
        entry = builders.allocation(f"a{number}", request=percent, memory_gib=memory_gib)
        # Also when overcommitted: a fault in the ledger must not produce impossible figures.
        node = dataclasses.replace(node, allocations=(*node.allocations, entry))
    split = gpu_capacity.divide(node, policies.default_mix)
    assert sum(split.values()) == pytest.approx(2)
    assert all(part > 0 for part in split.values())
