"""The compute mode as a part of setting a GPU up: any number of processes may use it, unless MPS has it alone."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable

from deviceplugin.hardware import nvml_call, nvml_mig
from deviceplugin.hardware.driver import Driver
from deviceplugin.modes.setup import SetUpError
from gpushare.gpu import Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class ComputePart:
    """Undoes EXCLUSIVE_PROCESS, whoever left it: MPS of ours that could not be ended, or somebody else's.

    changed: called when a compute mode is not what it was.
    """

    driver: Driver
    compute_modes: nvml_mig.MigDriver
    changed: Callable[[], Awaitable[None]]

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Let any number of processes have the GPU. Raises SetUpError, also where somebody has forbidden its use."""
        if assignment.mode is Mode.MPS:
            return
        try:
            present = await self.driver.ask(self.compute_modes.compute_mode, gpu.uuid)
            if present is ComputeMode.PROHIBITED:
                raise SetUpError(f"its compute mode is {present}: `nvidia-smi -i {gpu.uuid} -c 0` lets programs use it")
            if present is not ComputeMode.DEFAULT:
                await self.driver.ask(self.compute_modes.set_exclusive_process, gpu.uuid, exclusive=False)
                logger.info("Undid a compute mode", extra={"gpu": gpu.uuid, "was": str(present)})
        except nvml_call.NvmlError as error:
            raise SetUpError(
                f"its compute mode cannot be made DEFAULT ({error}): give the agent config/components/mps, or run "
                f"`nvidia-smi -i {gpu.uuid} -c 0`"
            ) from error
        if present is not gpu.compute_mode or present is not ComputeMode.DEFAULT:
            await self.changed()

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Nothing: what comes next says what it is to be."""
