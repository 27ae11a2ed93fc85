"""What several tests of the agent use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deviceplugin import simulated


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name: 107 characters are all there is."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def simulation() -> None:
    simulated.build()


@pytest.fixture
def gpus(simulation: None, tmp_path: Path) -> Path:
    """The directory of four simulated GPUs."""
    return simulated.create(tmp_path / "gpus")
