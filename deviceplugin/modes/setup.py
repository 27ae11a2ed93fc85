"""Sets GPUs up for their modes, remembers which setups failed, and repairs GPUs that another program has changed.

A setup consists of parts: the compute mode, MIG, time slices, an MPS daemon. They are set up in order and torn down in
reverse order. A GPU that cannot be repaired is quarantined: it accepts no new pods, and the reason goes to the
GPUNode's condition and to an Event.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from deviceplugin.hardware import nvml_call, nvml_mig, partitioner
from deviceplugin.hardware.nvml import Driver
from deviceplugin.hardware.observation import Observation
from deviceplugin.modes.gpu_users import GpuUsers
from deviceplugin.mps import steps, supervisor
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.supervisor import ControlError
from deviceplugin.state.gpunode_copy import NodeEvents
from gpushare import contract
from gpushare.gpunode import Gpu, Mode
from gpushare.mig import instance_layout
from gpushare.modes.assignment import Assignment, compute_modes, contradiction
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 2.0


class SetUpError(Exception):
    """A GPU could not be set up or torn down; the message gives the reason and the remedy."""


class SetUpPart:
    """A step that prepares a GPU for its mode, such as creating its MIG devices or starting its MPS daemon."""

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Bring this part to what `assignment` wants; no-op if it is there already. Raises SetUpError."""

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Undo what this part did for `was` and the next `assignment` does not want; by default, the next setup does.

        was: None if unknown. An agent that ended in between may have undone some of it already. Raises SetUpError.
        """


class ModeSetup:
    """Sets up all parts of GPUs. failed: by UUID, why the set-up or its removal failed. ready: UUIDs of the others."""

    def __init__(self, *parts: SetUpPart, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts, self._clock = parts, clock
        self._last_failures: dict[str, tuple[Assignment, float]] = {}  # by UUID, with the time
        self.ready: set[str] = set()
        self.failed: dict[str, str] = {}

    def in_backoff(self, uuid: str, assignment: Assignment) -> bool:
        """Whether this setup failed a moment ago. It can wake the reconciler, which would then retry at once."""
        tried, at = self._last_failures.get(uuid, (None, 0.0))
        return tried == assignment and self._clock() - at < BACKOFF_SECONDS

    def forget(self, uuid: str) -> None:
        """Treat the GPU as not set up, as it may have been reset."""
        self.ready.discard(uuid)
        self._last_failures.pop(uuid, None)

    def forget_failures_except(self, closed: Collection[str]) -> None:
        """Forget the failures of GPUs that are set up and open again."""
        self.failed = {uuid: why for uuid, why in self.failed.items() if uuid in closed or uuid not in self.ready}

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> bool:
        problem = await self.repair(gpu, assignment)
        if problem and self.failed.get(gpu.uuid) != problem:
            logger.warning("Could not set up a GPU", extra={"gpu": gpu.uuid, "err": problem})
        if problem:
            self._fail(gpu, assignment, problem)
        return not problem

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> bool:
        """Undo a GPU's previous mode before it gets `assignment`; return whether that succeeded."""
        self.ready.discard(gpu.uuid)
        try:
            for part in reversed(self._parts):
                await part.tear_down(gpu, was, assignment)
        except SetUpError as error:
            self._fail(gpu, assignment, str(error))
            extra = {"gpu": gpu.uuid, "was": str(was), "is": str(assignment), "err": str(error)}
            logger.warning("Could not take a GPU out of its mode", extra=extra)
            return False
        return True

    async def repair(self, gpu: HardwareGpu, assignment: Assignment) -> str:
        """Set a GPU up again for its current mode, even while it is in use; return why that failed, or ""."""
        try:
            for part in self._parts:
                await part.set_up(gpu, assignment)
        except SetUpError as error:
            return str(error) or "it failed without a reason"
        self.failed.pop(gpu.uuid, None)
        self.ready.add(gpu.uuid)
        return ""

    def _fail(self, gpu: HardwareGpu, assignment: Assignment, problem: str) -> None:
        self.failed[gpu.uuid] = problem
        self._last_failures[gpu.uuid] = assignment, self._clock()


class DriftRepair:
    """Repairs GPUs whose state differs from their mode. quarantined: by UUID, why a GPU cannot be repaired."""

    def __init__(self, events: NodeEvents, observed: Observation, gpu_users: GpuUsers, mode_setup: ModeSetup) -> None:
        self._events = events
        self._observed = observed
        self._gpu_users = gpu_users
        self._mode_setup = mode_setup
        self.quarantined: dict[str, str] = {}

    def drifted(self, in_force: Mapping[str, Assignment | None]) -> dict[str, str]:
        """Return, by UUID, how a GPU differs from its mode. Unhealthy GPUs are left out: their state is unreliable."""
        healthy = {gpu.uuid for gpu in self._observed.seen.gpus if gpu.healthy}
        known = ((gpu, in_force.get(gpu.uuid)) for gpu in self._observed.hardware_gpus if gpu.uuid in healthy)
        reasons = {gpu.uuid: contradiction(gpu, assignment) for gpu, assignment in known if assignment is not None}
        return {uuid: why for uuid, why in reasons.items() if why}

    def release_except(self, closed: Collection[str]) -> None:
        """End the quarantine of GPUs that are open again."""
        self.quarantined = {uuid: why for uuid, why in self.quarantined.items() if uuid in closed}

    async def repair(self, uuid: str, assignment: Assignment) -> bool:
        """Bring a GPU back to its mode, even while it is in use; return whether that succeeded."""
        gpu = self._gpu(uuid)
        if gpu is None:
            return False
        was = contradiction(gpu, assignment)
        silent = self._gpu_users.problem
        unknown = f"it is unknown which pods have devices of it ({silent})" if silent else ""
        problem = unknown or await self._mode_setup.repair(gpu, assignment)
        is_repaired = self.check(uuid, assignment, problem)
        if is_repaired:
            logger.warning("Repaired a GPU that another program had changed", extra={"gpu": uuid, "was": was})
        return is_repaired

    def check(self, uuid: str, assignment: Assignment, problem: str = "") -> bool:
        """Return whether a GPU can be used as assigned; if not, quarantine it and report each new reason once.

        problem: why setting it up or repairing it failed; empty if it did not.
        """
        gpu = self._gpu(uuid)
        difference = contradiction(gpu, assignment) if gpu is not None else "it is gone"
        why = ": ".join(dict.fromkeys(filter(None, (difference, problem))))
        if not why:
            self.quarantined.pop(uuid, None)
        elif self.quarantined.get(uuid) != why:
            self.quarantined[uuid] = why
            number = f"GPU {gpu.index} ({uuid})" if gpu is not None else uuid
            logger.warning("A GPU cannot be used in its mode", extra={"gpu": uuid, "err": why})
            note = f"{number} is configured as {assignment} but cannot be used: {why}"
            self._events.record(contract.EVENT_SET_ASIDE, note, warning=True)
        return not why

    def _gpu(self, uuid: str) -> HardwareGpu | None:
        return next((gpu for gpu in self._observed.hardware_gpus if gpu.uuid == uuid), None)


COMMAND_SECONDS: Final = 30.0
_TIME_SLICES: Final = {"default": "0", "short": "1", "medium": "2", "long": "3"}


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeModePart(SetUpPart):
    """The compute mode: DEFAULT in every mode except MPS, whose daemon sets EXCLUSIVE_PROCESS itself.

    An administrator may set EXCLUSIVE_PROCESS where all shares have the isolation mps. Elsewhere this undoes it,
    whether an MPS daemon that could not be stopped or another program left it.
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
            if present is ComputeMode.EXCLUSIVE_PROCESS and present in compute_modes(assignment):
                return  # an administrator has set it
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


@dataclasses.dataclass(frozen=True, slots=True)
class MigPart(SetUpPart):
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
        if not wanted.enabled and gpu.cut_for_shares:
            return  # it counts as whole, and becomes so after its shares
        layout = instance_layout.named(dict(wanted.wanted)) if wanted.enabled else None
        result = await self.driver.ask(self.partitions.apply, gpu.uuid, layout, held=self.held())
        if result.changed:
            await self.cut()
        if result.state is not partitioner.MigState.AS_WANTED:
            raise SetUpError(result.reason)


class TimeSlicePart(SetUpPart):
    """The length of a GPU's time slices. The driver forgets it when it is reloaded."""

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        if assignment.mode is Mode.TIME_SLICING and assignment.interval:
            await self._apply(gpu.uuid, assignment.interval)

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Restore the driver's default, unless the next assignment sets a length. Raises SetUpError."""
        if was is not None and was.interval and not assignment.interval:
            await self._apply(gpu.uuid, "default")

    async def _apply(self, uuid: str, interval: str) -> None:
        await run_command("nvidia-smi", "compute-policy", "-i", uuid, f"--set-timeslice={_TIME_SLICES[interval]}")
        logger.info("Set the length of time slices", extra={"gpu": uuid, "interval": interval})


@dataclasses.dataclass(frozen=True, slots=True)
class MpsPart(SetUpPart):
    """The MPS daemon of a GPU in mode mps. gpu_of: returns the GPU with a UUID, or None if it is gone."""

    daemons: Daemons
    _: dataclasses.KW_ONLY
    gpu_of: Callable[[str], Gpu | None]

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        if assignment.mode is not Mode.MPS:
            return
        known = self.gpu_of(gpu.uuid)
        if known is None:
            raise SetUpError(f"{gpu.uuid} is gone: its MPS daemon is not started")
        mig_was_disabled = assignment.partition is not None and not assignment.partition.enabled
        if gpu.mig_enabled and not mig_was_disabled:
            raise SetUpError(f"{gpu.uuid} is in MIG mode: sharing by MPS is for whole GPUs, write mig-enabled: false")
        # If a container may have several replicas, so may each of its processes.
        at_once = 1 if assignment.alone else assignment.replicas
        shared = steps.MpsGpu(gpu.uuid, gpu.index, known.memory_bytes, assignment.replicas, at_once)
        try:
            steps.check_replicas(assignment.replicas, known.compute_capability)
            await self.daemons.start(steps.Spec(gpu.uuid, (shared,)))
        except (steps.LimitError, ControlError, OSError) as error:
            raise SetUpError(f"the MPS daemon of {gpu.uuid} does not run: {error}") from error

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:  # noqa: ARG002 - a SetUpPart
        """Stop the GPU's daemon, even if `assignment` wants one too. Raises SetUpError.

        New limits only apply to the next server that the daemon starts, and the last client's server is still running.
        """
        try:
            await self.daemons.stop(gpu.uuid)
        except (ControlError, OSError) as error:
            raise SetUpError(f"the MPS daemon of {gpu.uuid} cannot be stopped: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class MigSharesPart(SetUpPart):
    """MIG devices that were cut for shares of a fractional GPU. merge: makes it whole, or returns why it cannot."""

    merge: Callable[[str], Awaitable[str]]

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:  # noqa: ARG002 - a SetUpPart
        """Make the GPU whole again before it gets another mode. Raises SetUpError."""
        if problem := await self.merge(gpu.uuid):
            raise SetUpError(f"the GPU cannot become whole: {problem}")


async def run_command(*command: str) -> None:
    """Run one of the driver's command-line tools. Raises SetUpError with its output."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        why = f"{command[0]} cannot be run ({error.strerror}): it comes with the driver's utilities"
        raise SetUpError(why) from error
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise SetUpError(f"{' '.join(command)} did not end within {COMMAND_SECONDS:.0f} s") from error
    finally:  # this task may be cancelled too
        await supervisor.end(process)
    if process.returncode:
        raise SetUpError(f"{' '.join(command)} failed: {output.decode(errors='replace').strip()}")
