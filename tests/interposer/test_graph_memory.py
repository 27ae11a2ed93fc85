"""Tests that memory allocated by graphs is charged at their launch, and that launches that do not fit are refused.

On simulated GPUs the memory comes in pages of 2 MiB, and graphs in one stream share it.
"""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, finishing
from tests.interposer.launching import line
from tests.interposer.programs import graph_memory
from tests.interposer.programs.graphing import LIMIT
from tests.programs import command


def test_graph_is_charged_from_its_first_launch(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(graph_memory.launches_again_and_again)
    assert arbiter.reclaims == 0


def test_graph_with_memory_still_runs_when_overhead_exceeds_the_limit(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    with finishing(container.start(command(graph_memory.runs_on))) as process:
        assert line(process) == "launched"
        arbiter.set(0, overhead_bytes=LIMIT)
        _, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors


def test_launch_that_does_not_fit_is_refused(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.does_not_fit)


@pytest.mark.parametrize("per_thread", [False, True])
def test_captured_allocation_is_charged_when_the_graph_runs(
    container: Container, make_arbiter: ArbiterMaker, per_thread: bool
) -> None:
    make_arbiter(LIMIT)
    end = "_ptsz" if per_thread else ""
    container.program(graph_memory.allocates_in_a_capture, end)


def test_graph_reuses_memory_that_it_freed(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.allocates_what_it_freed)


def test_graphs_that_run_in_turn_share_memory(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.run_in_turn)


@pytest.mark.slow
def test_concurrent_graphs_are_charged_separately(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.run_at_once)


def test_memory_left_by_a_graph_stays_charged(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.leaves_unfreed)


@pytest.mark.parametrize("symbol", ["cuGraphAddNode_v2", "cuGraphAddNode_v3"])
def test_allocation_nodes_of_every_function_are_charged(
    container: Container, make_arbiter: ArbiterMaker, symbol: str
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.every_kind_of_node, symbol)


def test_graph_uploaded_at_instantiation_is_charged(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.uploads)


def test_graph_cannot_allocate_on_a_gpu_outside_the_share(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.on_another_gpu)


def test_graph_on_two_gpus_is_charged_on_both(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT, 64 * MIB)
    container.program(graph_memory.on_two_gpus)


@pytest.mark.slow
def test_killed_process_leaves_no_graph_memory(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    for _ in range(2):
        with finishing(container.start(command(graph_memory.launches_until_it_is_killed, 256))) as process:
            assert line(process) == "started", process.communicate(timeout=10)
        container.program(graph_memory.launches, 256)


@pytest.mark.parametrize("depth", [1, 64, 65])
def test_allocation_in_nested_graphs_is_charged_or_refused(
    container: Container, make_arbiter: ArbiterMaker, depth: int
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_memory.graphs_in_graphs, depth)
