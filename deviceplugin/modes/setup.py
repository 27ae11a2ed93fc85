"""What has to be done to a GPU before it can be used as it is assigned: nothing, MIG, a daemon of MPS, a time slice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final, Protocol

from gpushare.gpu import Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)

COMMAND_SECONDS: Final = 30.0
KILLED_SECONDS: Final = 1.0
_TIME_SLICES: Final = {"default": "0", "short": "1", "medium": "2", "long": "3"}


class SetUpError(Exception):
    """A GPU could not be made what it is to be; the message says why, and what to do."""


class SetUpPart(Protocol):
    """One thing that GPUs are set up with."""

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Have it as `assignment` wants it; nothing happens where it is so already. Raises SetUpError."""

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Take away what it had for `was`, and `assignment`, the next one, does not want. Raises SetUpError.

        was: None where that is unknown; also an agent that has ended since may have begun to take it away.
        """


class TimeSlices:
    """The length of a GPU's time slices, which the driver forgets when it is loaded again."""

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Set it, where one is configured."""
        if assignment.mode is Mode.TIME_SLICING and assignment.interval:
            await self._have(gpu.uuid, assignment.interval)

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Have the driver's own again, unless the next one has its own."""
        if was is not None and was.interval and not assignment.interval:
            await self._have(gpu.uuid, "default")

    async def _have(self, uuid: str, interval: str) -> None:
        await run("nvidia-smi", "compute-policy", "-i", uuid, f"--set-timeslice={_TIME_SLICES[interval]}")
        logger.info("Set the length of time slices", extra={"gpu": uuid, "interval": interval})


class SetUp:
    """All parts, in the order in which a GPU is set up with them; it is taken apart in the opposite order."""

    def __init__(self, *parts: SetUpPart) -> None:
        self._parts = parts

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Make the GPU ready to be used as that. Raises SetUpError."""
        for part in self._parts:
            await part.enter(gpu, assignment)

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Take apart what it was set up with and `assignment`, the next one, does not want. Raises SetUpError."""
        for part in reversed(self._parts):
            await part.leave(gpu, was, assignment)


async def run(*command: str) -> None:
    """Run a command of the driver's. Raises SetUpError with what it said."""
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
        with contextlib.suppress(TimeoutError):  # one that hangs in the driver may not end even then
            async with asyncio.timeout(KILLED_SECONDS):
                await process.wait()
        raise SetUpError(f"{' '.join(command)} did not end within {COMMAND_SECONDS:.0f} s") from error
    if process.returncode:
        raise SetUpError(f"{' '.join(command)} failed: {output.decode(errors='replace').strip()}")
