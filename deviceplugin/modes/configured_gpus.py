"""The GPUs that a configuration was understood for, so that it means the same when one of them is gone. Pure.

A configuration names GPUs by number, or counts them. When one dies, the driver numbers those behind it again: the same
words would make other GPUs something else, or not be true of any. So as long as one is missing, and the configuration
is the same, each keeps its number, and the missing one is counted as if it were there. So is one that the driver counts
and that cannot be read: a configuration that names it is as good for the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from gpushare.modes.hardware_gpu import HardwareGpu

_UNREAD: Final = "unread-"  # in place of the UUID


@dataclasses.dataclass(frozen=True, slots=True)
class ConfiguredGpu:
    """A GPU by UUID, with its number and what else a configuration goes by."""

    uuid: str
    index: int
    model: str = ""
    mig_capable: bool = False


def of(gpus: Iterable[HardwareGpu]) -> tuple[ConfiguredGpu, ...]:
    """The seats of GPUs that are there."""
    return tuple(ConfiguredGpu(gpu.uuid, gpu.index, gpu.model, gpu.mig_capable) for gpu in gpus)


def missing(gpus: Iterable[HardwareGpu], seats: Iterable[ConfiguredGpu]) -> tuple[ConfiguredGpu, ...]:
    """The seats whose GPU is gone, and that no other has taken."""
    gpus, seats = tuple(gpus), tuple(seats)
    here, known = {gpu.uuid for gpu in gpus}, {seat.uuid for seat in seats}
    taken = {gpu.index for gpu in gpus if gpu.uuid not in known}
    return tuple(seat for seat in seats if seat.uuid not in here and seat.index not in taken)


def seated(gpus: Sequence[HardwareGpu], seats: Iterable[ConfiguredGpu]) -> tuple[HardwareGpu, ...]:
    """The GPUs at their seats, with those that are gone; as they are where none is."""
    gone = missing(gpus, seats)
    if not gone:
        return tuple(gpus)
    known = {seat.uuid: seat for seat in seats}
    here = [dataclasses.replace(gpu, index=known[gpu.uuid].index) for gpu in gpus if gpu.uuid in known]
    new = [gpu for gpu in gpus if gpu.uuid not in known]
    absent = [HardwareGpu(seat.uuid, seat.index, seat.model, seat.mig_capable) for seat in gone]
    return tuple(sorted((*here, *new, *absent), key=lambda gpu: (gpu.index, gpu.uuid)))


def unread(gpus: Iterable[HardwareGpu], indices: Iterable[int | None]) -> tuple[HardwareGpu, ...]:
    """The GPUs with these numbers that are none of `gpus`, of which nothing else is known."""
    known = {gpu.index for gpu in gpus}
    new = (index for index in indices if index is not None and index not in known)
    return tuple(HardwareGpu(f"{_UNREAD}{index}", index, mig_capable=True) for index in new)


def is_unread(uuid: str) -> bool:
    """Whether this stands for the UUID of a GPU that cannot be read."""
    return uuid.startswith(_UNREAD)
