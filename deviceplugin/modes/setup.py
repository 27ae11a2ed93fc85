"""Sets GPUs up for their modes, remembers which setups failed, and repairs GPUs that another program has changed.

A setup consists of parts: the compute mode, MIG, time slices, an MPS daemon (`setup_parts`). They are set up in order
and torn down in reverse order. A GPU that cannot be repaired is quarantined: it accepts no new pods, and the reason
goes to the GPUNode's condition and to an Event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from deviceplugin.hardware.observation import Observation
from deviceplugin.modes.gpu_users import GpuUsers
from deviceplugin.state.gpunode_copy import NodeEvents
from gpushare import contract
from gpushare.modes.assignment import Assignment
from gpushare.modes.contradiction import contradiction
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 2.0


class SetUpError(Exception):
    """A GPU could not be set up or torn down; the message gives the reason and the remedy."""


class SetUpPart(Protocol):
    """A step that prepares a GPU for its mode, such as creating its MIG devices or starting its MPS daemon."""

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Bring this part to what `assignment` wants; no-op if it is there already. Raises SetUpError."""

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:
        """Undo what this part did for `was` and the next `assignment` does not want. Raises SetUpError.

        was: None if unknown. An agent that ended in between may have undone some of it already.
        """


class ModeSetup:
    """Sets up all parts of a GPU, and remembers which setups failed since the agent started.

    failed: by UUID, why a GPU could not be set up or torn down.
    """

    def __init__(self, *parts: SetUpPart, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._clock = clock
        self._last_failures: dict[str, tuple[Assignment, float]] = {}  # by UUID, with the time
        self._ready: set[str] = set()
        self._failed: dict[str, str] = {}

    @property
    def failed(self) -> Mapping[str, str]:
        return self._failed

    def is_ready(self, uuid: str) -> bool:
        """Whether this process has set the GPU up."""
        return uuid in self._ready

    def in_backoff(self, uuid: str, assignment: Assignment) -> bool:
        """Whether this setup failed less than `BACKOFF_SECONDS` ago.

        A failed setup can wake the reconciler, which would retry at once without this pause.
        """
        tried, at = self._last_failures.get(uuid, (None, 0.0))
        return tried == assignment and self._clock() - at < BACKOFF_SECONDS

    def forget(self, uuid: str) -> None:
        """Treat the GPU as not set up, as it may have been reset."""
        self._ready.discard(uuid)
        self._last_failures.pop(uuid, None)

    def forget_failures_except(self, closed: Collection[str]) -> None:
        """Forget the failures of GPUs that are set up and open again."""
        self._failed = {uuid: why for uuid, why in self._failed.items() if uuid in closed or uuid not in self._ready}

    async def set_up(self, gpu: HardwareGpu, assignment: Assignment) -> bool:
        """Set a GPU up; return whether that succeeded."""
        try:
            await self._set_up(gpu, assignment)
        except SetUpError as error:
            if self._failed.get(gpu.uuid) != str(error):
                logger.warning("Could not set up a GPU", extra={"gpu": gpu.uuid, "err": str(error)})
            self._fail(gpu, assignment, error)
            return False
        return True

    async def tear_down(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> bool:
        """Undo a GPU's previous mode before it gets `assignment`; return whether that succeeded."""
        self._ready.discard(gpu.uuid)
        try:
            for part in reversed(self._parts):
                await part.tear_down(gpu, was, assignment)
        except SetUpError as error:
            self._fail(gpu, assignment, error)
            extra = {"gpu": gpu.uuid, "was": str(was), "is": str(assignment), "err": str(error)}
            logger.warning("Could not take a GPU out of its mode", extra=extra)
            return False
        return True

    async def repair(self, gpu: HardwareGpu, assignment: Assignment) -> str:
        """Set a GPU up again for its current mode, even while it is in use; return why that failed, or ""."""
        try:
            await self._set_up(gpu, assignment)
        except SetUpError as error:
            return str(error)
        return ""

    async def _set_up(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        for part in self._parts:
            await part.set_up(gpu, assignment)
        self._failed.pop(gpu.uuid, None)
        self._ready.add(gpu.uuid)

    def _fail(self, gpu: HardwareGpu, assignment: Assignment, error: SetUpError) -> None:
        self._failed[gpu.uuid] = str(error)
        self._last_failures[gpu.uuid] = assignment, self._clock()


class DriftRepair:
    """Finds GPUs whose state differs from their mode, repairs them, and quarantines those that it cannot repair.

    quarantined: by UUID, why a GPU cannot be used although its setup did not fail.
    """

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
