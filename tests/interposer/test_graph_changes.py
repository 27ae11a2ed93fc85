"""Tests the charges of executable graphs that are changed, or destroyed while they run."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import ArbiterMaker
from tests.interposer.container import Container, lines_of_the_library
from tests.interposer.programs import graph_changes
from tests.interposer.programs.graphing import LIMIT
from tests.programs import command


@pytest.mark.parametrize("form", ["", "_v2"])
def test_updated_graph_is_charged_for_its_new_allocations(
    container: Container, make_arbiter: ArbiterMaker, form: str
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates, form)


@pytest.mark.slow
def test_graph_updated_while_it_runs_is_charged_for_both_versions(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates_what_runs)


def test_failed_graph_update_keeps_the_old_charge(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates_in_vain)


def test_memory_left_by_a_graph_stays_charged_after_its_update(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.updates_what_left_memory)


@pytest.mark.slow
def test_graph_destroyed_while_it_runs_stays_charged_until_it_ends(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(graph_changes.destroys_what_runs)


def test_allocating_child_of_an_executable_graph_is_refused(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    result = container.run(command(graph_changes.changes_a_child))
    assert result.returncode == 0, result.stderr
    first, second = lines_of_the_library(result.stderr)
    assert "cuGraphExecChildGraphNodeSetParams is refused" in first
    assert "cuGraphExecNodeSetParams is refused" in second
