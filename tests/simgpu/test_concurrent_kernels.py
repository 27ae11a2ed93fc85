"""Concurrent kernels of a process: their parts of the GPU, and the order in which streams continue."""

from __future__ import annotations

import pytest

from tests.simgpu.conftest import Node
from tests.simgpu.programs import concurrent_kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "ends"),
    [
        ("k_20ms k_20ms", (20, 40)),
        ("k_50pct_20ms k_50pct_20ms", (20, 20)),
        ("k_25pct_20ms k_25pct_30ms k_50pct_40ms", (20, 30, 40)),
        ("k_60pct_20ms k_80pct_20ms", (20, 30)),  # the second one gets half of its part until the first has ended
        ("k_20ms k_10pct_10ms", (20, 30)),
    ],
)
def test_kernels_in_different_streams_share_the_gpu(node: Node, kernels: str, ends: tuple[int, ...]) -> None:
    node.program(concurrent_kernels.shares_by_parts, kernels, ends)


def test_kernels_in_one_stream_never_overlap(node: Node) -> None:
    node.program(concurrent_kernels.one_stream_and_another)


@pytest.mark.slow
def test_legacy_default_stream_and_blocking_streams_wait_for_each_other(node: Node) -> None:
    node.program(concurrent_kernels.legacy_stream)


@pytest.mark.slow
def test_each_thread_has_its_own_default_stream(node: Node) -> None:
    node.program(concurrent_kernels.streams_of_threads)


@pytest.mark.slow
def test_stream_waits_for_events_of_other_streams_and_gpus(node: Node) -> None:
    node.program(concurrent_kernels.waits_for_events)


def test_context_event_comes_after_all_streams(node: Node) -> None:
    node.program(concurrent_kernels.event_of_a_context)


def test_more_streams_than_channels_all_finish(node: Node) -> None:
    node.program(concurrent_kernels.hundred_streams)


@pytest.mark.slow
def test_context_accepts_1024_launches_over_all_streams(node: Node) -> None:
    node.program(concurrent_kernels.thousand_launches)
