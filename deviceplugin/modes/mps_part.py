"""MPS as a part of setting up a GPU: a daemon while the GPU is shared by it, none otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from deviceplugin.modes.setup import SetUpError
from deviceplugin.mps import limits, steps
from deviceplugin.mps.control import ControlError
from deviceplugin.mps.daemons import Daemons
from gpushare.gpu import Gpu, Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu


@dataclasses.dataclass(frozen=True, slots=True)
class MpsPart:
    """gpu_of: what is known of a GPU by its UUID; None for one that is not there."""

    daemons: Daemons
    _: dataclasses.KW_ONLY
    gpu_of: Callable[[str], Gpu | None]

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> None:
        """Have the GPU's daemon running, with limits for that many replicas. Raises SetUpError."""
        if assignment.mode is not Mode.MPS:
            return
        known = self.gpu_of(gpu.uuid)
        if known is None:
            raise SetUpError(f"{gpu.uuid} is not there any more: its MPS daemon is not started")
        whole_by_now = assignment.partition is not None and not assignment.partition.enabled
        if gpu.mig_enabled and not whole_by_now:
            raise SetUpError(f"{gpu.uuid} is in MIG mode: sharing by MPS is for whole GPUs, write mig-enabled: false")
        try:
            limits.check_replicas(assignment.replicas, known.compute_capability)
            await self.daemons.have(spec(gpu, assignment, memory_bytes=known.memory_bytes))
        except (limits.LimitError, ControlError, OSError) as error:
            raise SetUpError(f"the MPS daemon of {gpu.uuid} does not run: {error}") from error

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> None:  # noqa: ARG002 - a Part
        """End the GPU's daemon, be it that `assignment` wants one, too. Raises SetUpError.

        The limits of a daemon are those of the server that it starts next, and the server of the last client is still
        there. https://docs.nvidia.com/deploy/mps/
        """
        try:
            await self.daemons.drop(gpu.uuid)
        except (ControlError, OSError) as error:
            raise SetUpError(f"the MPS daemon of {gpu.uuid} cannot be ended: {error}") from error


def spec(gpu: HardwareGpu, assignment: Assignment, *, memory_bytes: int) -> steps.Spec:
    """The daemon of a GPU that is shared like that: where a container may have several shares, each process may too."""
    at_once = 1 if assignment.alone else assignment.replicas
    shared = steps.MpsGpu(gpu.uuid, gpu.index, memory_bytes, assignment.replicas, at_once)
    return steps.Spec(gpu.uuid, (shared,))
