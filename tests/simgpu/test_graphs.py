"""Graphs, captures, and the number of launches that a context accepts before the next one waits."""

from __future__ import annotations

import pytest

from tests.simgpu.conftest import Node
from tests.simgpu.programs import graphs


def test_captured_graph_runs_only_when_launched(node: Node) -> None:
    node.program(graphs.captures)


@pytest.mark.parametrize("launches", [1000, 1100])
def test_context_accepts_1024_launches_and_then_waits(node: Node, launches: int) -> None:
    node.program(graphs.launches_in_a_row, launches)


def test_kernel_parameter_can_set_its_duration(node: Node) -> None:
    node.program(graphs.kernel_with_a_parameter)


def test_executable_graph_is_updated_from_one_with_the_same_nodes(node: Node) -> None:
    node.program(graphs.updates)


def test_capture_ends_with_its_stream(node: Node) -> None:
    node.program(graphs.destroys_a_capturing_stream)


def test_graph_gets_memory_before_its_work_is_queued(node: Node) -> None:
    assert node.program(graphs.starts_where_no_launch_is_taken) == "1023", "the launch must wait"
