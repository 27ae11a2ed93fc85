"""What there is on a GPU in MIG mode, as the driver says it."""

from __future__ import annotations

import dataclasses

from gpushare.mig.geometry import PlacedInstance, ProfileGeometry
from gpushare.mig.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class MigMode:
    """Whether a GPU is in MIG mode, and whether it will be after its next reset."""

    current: bool
    pending: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A MIG device. uuid: what programs and the kubelet know it by. busy: a process computes on it."""

    id: int
    slices: int
    uuid: str
    busy: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance at its place, with its compute instances; one that was made half-way has none."""

    id: int
    kind: ProfileGeometry
    start: int
    parts: tuple[ComputeInstance, ...] = ()

    @property
    def placed(self) -> PlacedInstance:
        """Where the instance lies on its GPU."""
        return PlacedInstance(self.kind, self.start)


@dataclasses.dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device with what a container, a label or a metric wants to know of it.

    index: its number on its GPU, the second one of NVIDIA's `0:1`. parent: UUID of the GPU. memory_bytes: of its GPU
    instance. multiprocessors, gpu_slices, compute_slices and engines: as NVML's attributes say.
    """

    uuid: str
    parent: str
    index: int
    gpu_instance: int
    compute_instance: int
    profile: Profile
    memory_bytes: int
    multiprocessors: int
    engines: dict[str, int]  # copy, decoder, encoder, jpeg, ofa
