"""Kernels of a process side by side: what takes part of the GPU, and in which order streams go on."""

from __future__ import annotations

import pytest

from tests.simgpu.conftest import Node
from tests.simgpu.programs import side_by_side


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "ends"),
    [
        ("k_20ms k_20ms", (20, 40)),
        ("k_50pct_20ms k_50pct_20ms", (20, 20)),
        ("k_25pct_20ms k_25pct_30ms k_50pct_40ms", (20, 30, 40)),
        ("k_60pct_20ms k_80pct_20ms", (20, 30)),  # the second has half of its part, until the first has ended
        ("k_20ms k_10pct_10ms", (20, 30)),
    ],
)
def test_kernels_of_different_streams_share_the_gpu_by_the_parts_that_they_take(
    node: Node, kernels: str, ends: tuple[int, ...]
) -> None:
    node.program(side_by_side.shares_by_parts, kernels, ends)


def test_kernels_of_one_stream_never_run_side_by_side(node: Node) -> None:
    node.program(side_by_side.one_stream_and_another)


@pytest.mark.slow
def test_the_legacy_default_stream_waits_for_blocking_streams_and_they_for_it(node: Node) -> None:
    node.program(side_by_side.legacy_stream)


@pytest.mark.slow
def test_threads_have_default_streams_of_their_own(node: Node) -> None:
    node.program(side_by_side.streams_of_threads)


@pytest.mark.slow
def test_a_stream_waits_for_an_event_of_another_one_and_of_another_gpu(node: Node) -> None:
    node.program(side_by_side.waits_for_events)


def test_an_event_of_a_whole_context_comes_after_all_of_its_streams(node: Node) -> None:
    node.program(side_by_side.event_of_a_context)


def test_more_streams_than_channels_are_all_served(node: Node) -> None:
    node.program(side_by_side.hundred_streams)


@pytest.mark.slow
def test_a_context_takes_1024_launches_whatever_their_streams_are(node: Node) -> None:
    node.program(side_by_side.thousand_launches)
