"""A real GPU and driver with the shipped library and arbiter. Without a GPU these tests are skipped.

GPUSHARE_TEST_GPU=simulated runs them on a simulated GPU, to test the tests themselves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bench.gpu import machine, tenants

Story = Callable[[tenants.Gpu], Awaitable[None]]
Play = Callable[[Story], None]


@pytest.fixture(scope="session")
def which(tmp_path_factory: pytest.TempPathFactory) -> machine.Machine:
    """The GPU, with everything built that runs on it."""
    if os.geteuid() != 0:
        pytest.skip("needs root: each program gets a separate mount namespace, as in a container")
    try:
        if os.environ.get("GPUSHARE_TEST_GPU") == "simulated":
            this_machine = machine.simulated(tmp_path_factory.mktemp("machine"))
        else:
            this_machine = machine.real()
    except machine.NoGpuError as error:
        pytest.skip(f"needs a GPU: {error}")
    tenants.build()
    return this_machine


@pytest.fixture(scope="session")
def loops(which: machine.Machine) -> int:
    """The amount of work per nanosecond on it."""
    return tenants.calibrate(which)


@pytest.fixture
def play(which: machine.Machine, loops: int, tmp_path: Path) -> Play:
    """Run a scenario on the GPU with a new arbiter that knows no process."""

    def tell(story: Story) -> None:
        async def told() -> None:
            async with tenants.opened(which, tmp_path, loops) as gpu:
                await asyncio.wait_for(story(gpu), 120)

        asyncio.run(told())

    return tell
