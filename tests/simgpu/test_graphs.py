"""Graphs, captures, and the launches that a context takes before the next one waits."""

from __future__ import annotations

import pytest

from tests.simgpu.conftest import Node
from tests.simgpu.programs import graphs


def test_a_captured_graph_runs_when_it_is_launched_and_not_before(node: Node) -> None:
    node.program(graphs.captures)


@pytest.mark.parametrize("launches", [1000, 1100])
def test_a_context_takes_so_many_launches_and_then_waits(node: Node, launches: int) -> None:
    node.program(graphs.launches_in_a_row, launches)


def test_a_kernel_may_take_as_long_as_its_parameter_says(node: Node) -> None:
    node.program(graphs.kernel_with_a_parameter)


def test_an_executable_graph_becomes_another_one_of_the_same_nodes(node: Node) -> None:
    node.program(graphs.updates)


def test_a_capture_ends_with_its_stream(node: Node) -> None:
    node.program(graphs.destroys_a_capturing_stream)


def test_a_graph_has_its_memory_before_its_work_is_queued(node: Node) -> None:
    assert node.program(graphs.starts_where_no_launch_is_taken) == "1023", "its start was to wait"
