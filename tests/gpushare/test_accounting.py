"""What a share is charged for: four quarters are a GPU, and no GPU costs more than one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import accounting, ledger, placement, request, typical
from gpushare.allocation import PodRef
from gpushare.gpu import Mode
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement
from tests import builders


def node_of(*shares: tuple[int, int]) -> GpuNode:
    """A node of one GPU of 80 GiB with shares of so many per cent of compute, and GiB."""
    node = builders.node(gpus=1)
    for number, (percent, memory_gib) in enumerate(shares):
        entry = builders.allocation(f"a{number}", request=percent, memory_gib=memory_gib, uid=f"u{number}")
        node = ledger.reserve(node, entry)
    return node


def parts(node: GpuNode) -> list[float]:
    return [round(charge.part, 4) for charge in accounting.charges(node)]


def test_four_quarters_are_a_gpu() -> None:
    assert parts(node_of(*[(25, 20)] * 4)) == [0.25] * 4


def test_the_larger_of_compute_and_memory_counts() -> None:
    assert parts(node_of((10, 40), (30, 8))) == [0.5, 0.3]


def test_unlike_neighbours_are_charged_less_so_that_a_gpu_costs_no_more_than_a_gpu() -> None:
    assert parts(node_of((90, 8), (10, 72))) == [0.5, 0.5]


def test_a_share_of_two_gpus_is_charged_on_both_and_one_whose_gpu_is_gone_on_none() -> None:
    entry = builders.allocation("a", "GPU-node-a-0", "GPU-node-a-1", request=50, memory_gib=8)
    node = ledger.reserve(builders.node(gpus=2), entry)
    assert [charge.gpu_uuid for charge in accounting.charges(node)] == ["GPU-node-a-0", "GPU-node-a-1"]
    assert parts(dataclasses.replace(node, gpus=node.gpus[:1])) == [0.5]


def test_shares_that_a_pod_uses_in_turn_cost_together_what_the_larger_does() -> None:
    asked = request.parse(builders.in_turn(warm="0.8", main="0.4"))
    outcome = placement.place(builders.views(builders.node(gpus=1)), asked)
    assert isinstance(outcome, Placement)
    entry = outcome.allocation(asked, allocation_id="a", pod=PodRef("default"), reserved_until=None)
    assert parts(ledger.reserve(builders.node(gpus=1), entry)) == [0.5333, 0.2667]


def divided(node: GpuNode) -> dict[str, float]:
    return {state.value: round(part, 4) for (_, state), part in accounting.divide(node, typical.by_default).items()}


def test_what_is_free_is_of_use_to_the_typical_request_or_stranded() -> None:
    assert divided(builders.node(gpus=1)) == {"free": 1.0}
    split = divided(node_of((60, 48)))  # 40 % are left: too little for a half or a whole GPU, half of what is asked for
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
def test_what_is_free_on_a_gpu_that_takes_nobody_is_stranded(change: dict[str, object], state: str) -> None:
    node = node_of((25, 20))
    node = dataclasses.replace(node, gpus=(dataclasses.replace(node.gpus[0], **change),))  # type: ignore[arg-type]
    assert divided(node) == {"allocated": 0.25, state: 0.75}


def test_what_is_held_for_a_pod_that_waits_is_nobodys_yet() -> None:
    node = builders.node(gpus=1)
    entry = dataclasses.replace(builders.allocation("hold-x", request=50, memory_gib=8), id="hold-x")
    assert divided(ledger.reserve(node, entry))["held"] == 0.5


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 80)), max_size=6), st.sampled_from(list(Mode)))
def test_the_parts_of_a_node_add_up_to_its_gpus(shares: list[tuple[int, int]], mode: Mode) -> None:
    node = builders.node(gpus=2, mode=mode)
    for number, (percent, memory_gib) in enumerate(shares):
        entry = builders.allocation(f"a{number}", request=percent, memory_gib=memory_gib)
        # Over-committed as well: what is wrong in the ledger must not make figures that are impossible.
        node = dataclasses.replace(node, allocations=(*node.allocations, entry))
    split = accounting.divide(node, typical.by_default)
    assert sum(split.values()) == pytest.approx(2)
    assert all(part > 0 for part in split.values())
