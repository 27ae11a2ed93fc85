"""Tests that a process's first refused allocation prints one line, in every function."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, lines_of_the_library
from tests.interposer.programs import graph_memory, memory_limit, refused_memory
from tests.programs import command

LIMIT = 64 * MIB
GIB = 1024 * MIB


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
@pytest.mark.parametrize("kind", memory_limit.KINDS)
def test_first_refusal_of_a_process_prints_a_line(
    container: Container, make_arbiter: ArbiterMaker, kind: str, proc: bool
) -> None:
    make_arbiter(LIMIT)
    for size, mib in ((64 * MIB, 64), (3 * GIB + 1, 3073)):
        ended = container.run(command(refused_memory.refused_again_and_again, kind, proc, size))
        assert ended.returncode == 0, ended.stderr
        (line,) = lines_of_the_library(ended.stderr)
        assert line.startswith(f"gpushare: {mib} MiB refused: ")
        assert line.endswith(" of the container's 64 MiB are in use (gpushare.io/memory)")


def test_refusal_shows_the_figures_of_the_share(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(2 * GIB)
    ended = container.run(command(refused_memory.refused_again_and_again, "plain", False, 3 * GIB))
    assert lines_of_the_library(ended.stderr) == [
        "gpushare: 3072 MiB refused: 1 of the container's 2048 MiB are in use (gpushare.io/memory)"
    ]


def test_graph_that_does_not_fit_prints_a_line(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(256 * MIB)
    ended = container.run(command(graph_memory.does_not_fit))
    assert ended.returncode == 0, ended.stderr
    assert lines_of_the_library(ended.stderr) == [
        "gpushare: 100 MiB refused: 157 of the container's 256 MiB are in use (gpushare.io/memory)"
    ]


def test_refusal_by_the_driver_prints_nothing(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(40 * GIB)
    ended = container.run(command(refused_memory.refused_by_the_driver, 5 * GIB))
    assert ended.returncode == 0, ended.stderr
    assert lines_of_the_library(ended.stderr) == []


@pytest.mark.parametrize("reader", [True, False], ids=["full", "closed"])
def test_program_continues_if_its_stderr_cannot_be_written(
    container: Container, make_arbiter: ArbiterMaker, reader: bool
) -> None:
    make_arbiter(LIMIT)
    assert container.program(refused_memory.refused_with_nobody_to_tell, reader=reader) == "went on"
