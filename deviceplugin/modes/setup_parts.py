"""The parts of a GPU's setup: compute mode, MIG, time slices, and the MPS daemon."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from deviceplugin.hardware import nvml_call, nvml_mig
from deviceplugin.hardware.driver import Driver
from deviceplugin.mig import partitioner
from deviceplugin.modes.setup import SetUpError
from deviceplugin.mps import steps
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.supervisor import ControlError
from gpushare.gpu import Gpu, Mode
from gpushare.mig import feasibility
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu

logger = logging.getLogger(__name__)

COMMAND_SECONDS: Final = 30.0
KILL_SECONDS: Final = 1.0
_TIME_SLICES: Final = {"default": "0", "short": "1", "medium": "2", "long": "3"}


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeModePart:
    """The compute mode: DEFAULT in every mode except MPS, whose daemon sets EXCLUSIVE_PROCESS itself.

    Undoes EXCLUSIVE_PROCESS, whether an MPS daemon that could not be stopped or another program left it.
    changed: called after the compute mode has changed.
    """

    driver: Driver
    compute_modes: nvml_mig.MigDriver
    changed: Callable[[], Awaitable[None]]

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Allow any number of processes on the GPU. Raises SetUpError, also if an administrator prohibited its use."""
        if assignment.mode is Mode.MPS:
            return
        try:
            present = await self.driver.ask(self.compute_modes.compute_mode, gpu.uuid)
            if present is ComputeMode.PROHIBITED:
                raise SetUpError(f"its compute mode is {present}: `nvidia-smi -i {gpu.uuid} -c 0` lets programs use it")
            if present is not ComputeMode.DEFAULT:
                await self.driver.ask(self.compute_modes.set_exclusive_process, gpu.uuid, exclusive=False)
                logger.info("Reset a compute mode to DEFAULT", extra={"gpu": gpu.uuid, "was": str(present)})
        except nvml_call.NvmlError as error:
            raise SetUpError(
                f"its compute mode cannot be made DEFAULT ({error}): give the agent config/components/mps, or run "
                f"`nvidia-smi -i {gpu.uuid} -c 0`"
            ) from error
        if present is not gpu.compute_mode or present is not ComputeMode.DEFAULT:
            await self.changed()

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Do nothing: the next setup sets the compute mode."""


@dataclasses.dataclass(frozen=True, slots=True)
class MigPart:
    """MIG mode and MIG devices. cut: called after they have changed; held: returns the UUIDs that pods have.

    A GPU changes its MIG devices only while it is unused. But at the agent's start the recorded devices are checked
    on GPUs in use too, and a device that a pod has but does not compute on at the moment looks idle to the driver.
    """

    driver: Driver
    partitions: partitioner.Partitioner
    cut: Callable[[], Awaitable[None]]
    held: Callable[[], frozenset[str]]

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Create exactly the MIG devices of the assignment; no-op if it does not mention MIG. Raises SetUpError."""
        wanted = assignment.partition
        if wanted is None or not (gpu.mig_capable or wanted.enabled):
            return
        layout = feasibility.named(dict(wanted.wanted)) if wanted.enabled else None
        result = await self.driver.ask(self.partitions.apply, gpu.uuid, layout, held=self.held())
        if result.changed:
            await self.cut()
        if result.state is not partitioner.MigState.AS_WANTED:
            raise SetUpError(result.reason)

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Do nothing: the next setup creates or removes MIG devices."""


class TimeSlicePart:
    """The length of a GPU's time slices. The driver forgets it when it is reloaded."""

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Set the configured length, if there is one. Raises SetUpError."""
        if assignment.mode is Mode.TIME_SLICING and assignment.interval:
            await self._apply(gpu.uuid, assignment.interval)

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Restore the driver's default, unless the next assignment sets a length. Raises SetUpError."""
        if was is not None and was.interval and not assignment.interval:
            await self._apply(gpu.uuid, "default")

    async def _apply(self, uuid: str, interval: str) -> None:
        await run("nvidia-smi", "compute-policy", "-i", uuid, f"--set-timeslice={_TIME_SLICES[interval]}")
        logger.info("Set the length of time slices", extra={"gpu": uuid, "interval": interval})


@dataclasses.dataclass(frozen=True, slots=True)
class MpsPart:
    """The MPS daemon of a GPU in mode mps. gpu_of: returns the GPU with a UUID, or None if it is gone."""

    daemons: Daemons
    _: dataclasses.KW_ONLY
    gpu_of: Callable[[str], Gpu | None]

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Start the GPU's daemon with limits for the configured number of replicas. Raises SetUpError."""
        if assignment.mode is not Mode.MPS:
            return
        known = self.gpu_of(gpu.uuid)
        if known is None:
            raise SetUpError(f"{gpu.uuid} is gone: its MPS daemon is not started")
        mig_was_disabled = assignment.partition is not None and not assignment.partition.enabled
        if gpu.mig_enabled and not mig_was_disabled:
            raise SetUpError(f"{gpu.uuid} is in MIG mode: sharing by MPS is for whole GPUs, write mig-enabled: false")
        try:
            steps.check_replicas(assignment.replicas, known.compute_capability)
            await self.daemons.start(mps_spec(gpu, assignment, memory_bytes=known.memory_bytes))
        except (steps.LimitError, ControlError, OSError) as error:
            raise SetUpError(f"the MPS daemon of {gpu.uuid} does not run: {error}") from error

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:  # noqa: ARG002 - a SetUpPart
        """Stop the GPU's daemon, even if `assignment` wants one too. Raises SetUpError.

        New limits only apply to the next server that the daemon starts, and the last client's server is still running.
        https://docs.nvidia.com/deploy/mps/
        """
        try:
            await self.daemons.stop(gpu.uuid)
        except (ControlError, OSError) as error:
            raise SetUpError(f"the MPS daemon of {gpu.uuid} cannot be stopped: {error}") from error


def mps_spec(gpu: HardwareGpu, assignment: Assignment, *, memory_bytes: int) -> steps.Spec:
    """Describe the daemon of a shared GPU. If a container may have several replicas, so may each of its processes."""
    at_once = 1 if assignment.alone else assignment.replicas
    shared = steps.MpsGpu(gpu.uuid, gpu.index, memory_bytes, assignment.replicas, at_once)
    return steps.Spec(gpu.uuid, (shared,))


async def run(*command: str) -> None:
    """Run one of the driver's command-line tools. Raises SetUpError with its output."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise SetUpError(
            f"{command[0]} cannot be run ({error.strerror}): it comes with the driver's utilities"
        ) from error
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as error:
        process.kill()
        with contextlib.suppress(TimeoutError):  # a process that hangs in the driver may survive SIGKILL
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()
        raise SetUpError(f"{' '.join(command)} did not end within {COMMAND_SECONDS:.0f} s") from error
    if process.returncode:
        raise SetUpError(f"{' '.join(command)} failed: {output.decode(errors='replace').strip()}")
