"""MIG as a part of setting a GPU up: its mode and its devices, as the assignment wants them."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from deviceplugin.hardware.driver import Driver
from deviceplugin.mig import partitioner
from deviceplugin.modes.setup import SetUpError
from gpushare.mig import feasibility
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu


@dataclasses.dataclass(frozen=True, slots=True)
class MigPart:
    """Cuts GPUs. cut: called when their MIG devices are not what they were; held: UUIDs of those that pods have.

    A GPU is cut again only when nobody uses it. But when the agent starts, what is in force is made sure of, on GPUs in
    use too: a device that somebody has and does not compute on at the moment looks idle to the driver.
    """

    driver: Driver
    partitions: partitioner.Partitioner
    cut: Callable[[], Awaitable[None]]
    held: Callable[[], frozenset[str]]

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Have the MIG devices of the assignment, and no others; nothing where it leaves MIG as it is."""
        wanted = assignment.partition
        if wanted is None or not (gpu.mig_capable or wanted.enabled):
            return
        layout = feasibility.named(dict(wanted.wanted)) if wanted.enabled else None
        result = await self.driver.ask(self.partitions.apply, gpu.uuid, layout, held=self.held())
        if result.changed:
            await self.cut()
        if result.state is not partitioner.MigState.AS_WANTED:
            raise SetUpError(result.reason)

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Nothing: what comes next says what MIG is to be."""
