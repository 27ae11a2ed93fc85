"""What a GPU is used for of which nothing is known: at an agent's first start, and when a GPU is new. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpushare.allocation import Allocation
from gpushare.gpu import Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.contradiction import contradiction
from gpushare.modes.hardware_gpu import HardwareGpu

# What needs nothing to be done to a GPU, so that a first agent can begin with it at once.
_READY_MADE: Final = (Mode.FRACTIONAL, Mode.EXCLUSIVE, Mode.TIME_SLICING)


def adopted(gpu: HardwareGpu, wanted: Assignment, allocations: Iterable[Allocation]) -> Assignment | None:
    """What it has shares as, or else what is wanted, if it can be that as it is; None: it has to be set up first."""
    if any(gpu.uuid in entry.gpu_uuids for entry in allocations):
        return Assignment(Mode.FRACTIONAL)
    needs_nothing = wanted.mode in _READY_MADE and wanted.partition is None and not wanted.interval
    return wanted if needs_nothing and not contradiction(gpu, wanted) else None
