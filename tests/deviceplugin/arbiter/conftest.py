"""A node with its arbiter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deviceplugin import arbiter_node


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[arbiter_node.ArbiterNode]:
    async with arbiter_node.opened(short_path) as made:
        yield made
