"""GPUs and shares for programs that compile and launch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.cuda import share


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    """Two simulated GPUs of 40 GiB."""
    return share.gpus(tmp_path)


@pytest.fixture
async def shares(short_path: Path, gpus: Path) -> AsyncIterator[share.Shares]:
    """Shares of the first GPU."""
    async with share.opened(short_path, gpus) as made:
        yield made
