"""Whether the state of a GPU, as its driver reports it, matches its assignment. Pure.

Another program may have changed or reset the GPU. A reset deletes MIG devices and, on newer models, MIG mode.
"""

from __future__ import annotations

import collections
from typing import Final

from gpushare.gpu import Mode
from gpushare.mig import profile
from gpushare.modes.assignment import Assignment, Partition
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu

# In MIG mode a program can use only MIG devices, and only one of them, so several programs cannot share the GPU.
_NEED_ALL_OF_IT: Final = (Mode.FRACTIONAL, Mode.TIME_SLICING, Mode.MPS)
_UNDONE_BY: Final = (
    "`mig: all-disabled` in the configuration makes it whole, flags.migStrategy mixed offers its devices"
)

NO_MEMORY: Final = (
    "the driver does not tell how much memory it has, so it cannot be shared by annotation: list it under "
    "`sharing.timeSlicing` or `sharing.mps`, or leave it out of `sharing` to give it whole"
)

_ANY_NUMBER: Final = (ComputeMode.DEFAULT,)
# The MPS server is the one process that uses the GPU, and keeps it if another program changes the compute mode.
_ALLOWED: Final = {Mode.MPS: (ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS)}
_LETS: Final = {
    ComputeMode.EXCLUSIVE_THREAD: "which lets a single thread use it",
    ComputeMode.EXCLUSIVE_PROCESS: "which lets a single process use it",
    ComputeMode.PROHIBITED: "which lets no process use it",
}


def contradiction(gpu: HardwareGpu, assignment: Assignment) -> str:
    """Return why the GPU in its current state does not match this assignment, as a clause; empty if it does."""
    problem = _of_mig(gpu, assignment)
    if not problem and gpu.compute_mode not in _ALLOWED.get(assignment.mode, _ANY_NUMBER):
        problem = f"its compute mode is {gpu.compute_mode}, {_LETS[gpu.compute_mode]}"
    return problem or (NO_MEMORY if lacks_memory(gpu, assignment) else "")


def lasts(gpu: HardwareGpu, assignment: Assignment) -> bool:
    """Whether setting up the assignment again would not help: it does not undo a MIG layout that it does not
    configure.
    """
    is_cut = gpu.mig_enabled and assignment.partition is None and assignment.mode in _NEED_ALL_OF_IT
    return is_cut or lacks_memory(gpu, assignment)


def lacks_memory(gpu: HardwareGpu, assignment: Assignment) -> bool:
    """Whether the GPU is assigned to shares although the size of its memory is unknown."""
    return assignment.mode is Mode.FRACTIONAL and not gpu.memory_is_known


def _of_mig(gpu: HardwareGpu, assignment: Assignment) -> str:
    wanted = assignment.partition
    # MIG mode without devices is for admins who create their own.
    is_somebodys = wanted is not None and wanted.enabled and not wanted.wanted and gpu.mig_enabled
    if wanted is not None and (gpu.mig_capable or wanted.enabled) and not is_somebodys and not is_so(gpu, wanted):
        return f"it has {_shown(gpu)}, and is to have {wanted}"
    if gpu.mig_enabled and assignment.mode in _NEED_ALL_OF_IT:
        return f"it is in MIG mode with {_shown(gpu)}, of which a program can use one only: {_UNDONE_BY}"
    if not gpu.mig_enabled and assignment.mode is Mode.MIG:
        return "it is not in MIG mode"
    return ""


def is_so(gpu: HardwareGpu, wanted: Partition) -> bool:
    """Whether the GPU's MIG layout is `wanted`, by the profiles of its MIG devices."""
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
