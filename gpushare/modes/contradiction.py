"""Checks whether a GPU, as the driver reports it, can be used as assigned. Pure.

Another program may have changed the GPU, or reset it: MIG devices do not survive that, nor does the MIG mode of newer
models.
"""

from __future__ import annotations

import collections
from typing import Final

from gpushare.gpu import Mode
from gpushare.mig import profile
from gpushare.modes.assignment import Assignment, Partition
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu

# In MIG mode a program can use only MIG devices, and only one of them, so several programs cannot share the GPU.
_WHOLE_GPU_MODES: Final = (Mode.FRACTIONAL, Mode.TIME_SLICING, Mode.MPS)
_MIG_REMEDY: Final = (
    "`mig: all-disabled` in the configuration turns MIG off, flags.migStrategy mixed offers its MIG devices"
)

NO_MEMORY: Final = (
    "the driver does not report how much memory it has, so it cannot be shared by annotation: list it under "
    "`sharing.timeSlicing` or `sharing.mps`, or remove it from `sharing` to make it exclusive"
)

_ANY_NUMBER: Final = (ComputeMode.DEFAULT,)
# The MPS server is the one process that has the GPU, and goes on if another program relaxes the compute mode.
_ALLOWED: Final = {Mode.MPS: (ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS)}
_COMPUTE_MODES: Final = {
    ComputeMode.EXCLUSIVE_THREAD: "which allows one thread only",
    ComputeMode.EXCLUSIVE_PROCESS: "which allows one process only",
    ComputeMode.PROHIBITED: "which allows no process",
}


def contradiction(gpu: HardwareGpu, assignment: Assignment) -> str:
    """Return why the GPU, as it is, cannot be used as assigned, as a clause; empty if it can."""
    problem = _of_mig(gpu, assignment)
    if not problem and gpu.compute_mode not in _ALLOWED.get(assignment.mode, _ANY_NUMBER):
        problem = f"its compute mode is {gpu.compute_mode}, {_COMPUTE_MODES[gpu.compute_mode]}"
    return problem or (NO_MEMORY if lacks_memory(gpu, assignment) else "")


def is_permanent(gpu: HardwareGpu, assignment: Assignment) -> bool:
    """Whether the contradiction would remain after the GPU is set up: state that was not configured is not undone."""
    is_cut = gpu.mig_enabled and assignment.partition is None and assignment.mode in _WHOLE_GPU_MODES
    return is_cut or lacks_memory(gpu, assignment)


def lacks_memory(gpu: HardwareGpu, assignment: Assignment) -> bool:
    """Whether the GPU would take shares although its memory size is unknown."""
    return assignment.mode is Mode.FRACTIONAL and not gpu.memory_is_known


def _of_mig(gpu: HardwareGpu, assignment: Assignment) -> str:
    wanted = assignment.partition
    # MIG without devices is for users who create their own.
    is_user_managed = wanted is not None and wanted.enabled and not wanted.wanted and gpu.mig_enabled
    if (
        wanted is not None
        and (gpu.mig_capable or wanted.enabled)
        and not is_user_managed
        and not has_partition(gpu, wanted)
    ):
        return f"it has {_shown(gpu)}, but should have {wanted}"
    if gpu.mig_enabled and assignment.mode in _WHOLE_GPU_MODES:
        return f"it is in MIG mode with {_shown(gpu)}, and a program can use only one of these: {_MIG_REMEDY}"
    if not gpu.mig_enabled and assignment.mode is Mode.MIG:
        return "it is not in MIG mode"
    return ""


def has_partition(gpu: HardwareGpu, wanted: Partition) -> bool:
    """Whether the GPU's MIG state is as `wanted`, by the profiles of its MIG devices."""
    if not (wanted.enabled and gpu.mig_enabled):
        return wanted.enabled is gpu.mig_enabled
    return collections.Counter(str(profile.parse(mig_device.profile)) for mig_device in gpu.mig_devices) == dict(
        wanted.wanted
    )


def _shown(gpu: HardwareGpu) -> str:
    if not gpu.mig_enabled:
        return str(Partition(enabled=False))
    return str(
        Partition(
            True, tuple(sorted(collections.Counter(mig_device.profile for mig_device in gpu.mig_devices).items()))
        )
    )
