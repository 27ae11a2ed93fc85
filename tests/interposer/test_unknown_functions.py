"""Tests that a program cannot get an unknown driver function under a name that is held to the limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, lines_of_the_library, with_driver_before
from tests.interposer.programs import unknown_functions
from tests.programs import command

pytestmark = pytest.mark.slow


@pytest.fixture
def strange(container: Container, make_arbiter: ArbiterMaker, tmp_path: Path) -> Container:
    """A container whose driver returns functions that it does not export."""
    make_arbiter(MIB)
    directory = tmp_path / "drivers"
    directory.mkdir()
    return with_driver_before(container, "thunks.c", directory)


def test_function_that_the_driver_does_not_export_is_refused(strange: Container) -> None:
    result = strange.run(command(unknown_functions.asks))
    assert result.stdout.splitlines() == [
        "cuMemAlloc 12040 0 500 1 nothing",
        "cuMemAlloc 12040 2 500 1 nothing",
        "cuMemAlloc 99000 0 500 1 nothing",
        "cuMemFree 12040 0 0 0 a function",
        "cuStreamQuery 12040 0 0 0 a function",
    ], result.stderr
    assert lines_of_the_library(result.stderr) == [
        "gpushare: cuMemAlloc is refused: for cuGetProcAddress(version 12040, flags 0) the driver returns a function "
        "that this library does not know and cannot hold to the limits of this container; upgrade gpushare, or give "
        "the pod a whole GPU"
    ]


def test_newer_variant_that_the_driver_exports_is_refused(strange: Container) -> None:
    result = strange.run(command(unknown_functions.looks))
    refused, absent, known = result.stdout.splitlines()
    assert "undefined symbol: cuMemAlloc_v9" in refused
    assert "undefined symbol: cuMemAlloc_v8" in absent
    assert known == "cuMemAlloc_v2 True"
    (line,) = lines_of_the_library(result.stderr)
    assert line.startswith("gpushare: cuMemAlloc_v9 is refused: ")
