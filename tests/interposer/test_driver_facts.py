"""Tests the command that tells, before any measurement, whether a driver returns only functions that the library
intercepts.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu import driver_facts
from tests.interposer.container import DRIVERS, ROOT, Container, with_driver_before


def run(drivers: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-m", "bench.gpu.driver_facts"]  # -S: without packages
    environment = {"LD_LIBRARY_PATH": str(drivers)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_simulated_driver_returns_only_known_functions() -> None:
    found = driver_facts.facts(str(DRIVERS / "libcuda.so.1"))
    assert found.not_intercepted == {}
    assert found.unlisted == ()
    assert found.intercepted_answers > 3000
    assert run(DRIVERS).returncode == 0


@pytest.mark.slow
def test_driver_with_unknown_functions_is_reported(tmp_path: Path) -> None:
    nowhere = Container(tmp_path, tmp_path)
    drivers = with_driver_before(replace(nowhere, drivers=DRIVERS), "thunks.c", tmp_path).drivers
    result = run(drivers)
    assert result.returncode == 1, result.stderr
    assert re.search("NOT INTERCEPTED: cuMemAlloc, \\d+ answers, the first for version 2000, flags 0\n", result.stdout)
    assert "in no table of the library: cuMemAlloc_v9\n" in result.stdout


def test_missing_driver_is_reported_in_one_line(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: libcuda.so.1: ")
    assert result.stderr.count("\n") == 1
