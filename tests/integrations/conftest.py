"""gpushare next to other projects' programs. Building those takes minutes, so only `make test-integrations` runs these
tests. `make test` imports them, so that it fails if they use a name that is gone.
"""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect these tests, unless they are asked for."""
    if os.environ.get("GPUSHARE_TEST_INTEGRATIONS") != "1":
        deselected = [item for item in items if item.get_closest_marker("integration")]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in set(deselected)]
