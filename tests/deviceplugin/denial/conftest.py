"""A pod's cgroup in which the kernel checks opens of device files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deviceplugin.denial import kernel_node


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[kernel_node.KernelNode]:
    with kernel_node.opened(tmp_path) as made:
        yield made
