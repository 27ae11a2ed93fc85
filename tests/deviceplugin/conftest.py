"""Fixtures that several tests of the agent use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deviceplugin import simulated


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a directory with a short path: a socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def simulation() -> None:
    simulated.build()


@pytest.fixture
def gpus(simulation: None, tmp_path: Path) -> Path:
    """Return the directory of four simulated GPUs."""
    return simulated.create(tmp_path / "gpus")
