"""Tests the charges of executable graphs that are changed, or destroyed while they run."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import ArbiterMaker
from tests.interposer.container import Container, lines_of_the_library
from tests.interposer.programs import graph_changes
from tests.interposer.programs.graphing import LIMIT
from tests.programs import command


@pytest.mark.parametrize("form", ["", "_v2"])
def test_a_graph_that_is_updated_is_charged_for_what_it_allocates_now(
    container: Container, make_arbiter: ArbiterMaker, form: str
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates, form)


@pytest.mark.slow
def test_a_graph_that_is_updated_while_it_runs_has_memory_twice(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates_what_runs)


def test_a_graph_that_cannot_be_updated_stays_as_it_was(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates_in_vain)


def test_what_a_graph_left_unfreed_before_it_was_updated_stays_charged(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates_what_left_memory)


@pytest.mark.slow
def test_a_graph_that_is_destroyed_while_it_runs_has_its_memory_until_it_is_done(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.destroys_what_runs)


def test_allocations_are_not_put_into_a_child_of_an_executable_graph(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    result = container.run(command(graph_changes.changes_a_child))
    assert result.returncode == 0, result.stderr
    first, second = lines_of_the_library(result.stderr)
    assert "cuGraphExecChildGraphNodeSetParams is refused" in first
    assert "cuGraphExecNodeSetParams is refused" in second
