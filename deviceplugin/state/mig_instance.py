"""The state of a GPU's MIG mode, instances and devices, as the driver reports it."""

from __future__ import annotations

import dataclasses

from gpushare.mig.instance_layout import PlacedInstance, ProfileGeometry
from gpushare.mig.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class MigMode:
    """Whether a GPU is in MIG mode, and whether it will be after its next reset."""

    current: bool
    pending: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance. uuid: its ID as a MIG device. busy: whether a process computes on it."""

    id: int
    slices: int
    uuid: str
    busy: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance with its placement and compute instances; a half-created one has none."""

    id: int
    kind: ProfileGeometry
    start: int
    parts: tuple[ComputeInstance, ...] = ()

    @property
    def placed(self) -> PlacedInstance:
        """The profile and its position on the GPU."""
        return PlacedInstance(self.kind, self.start)


@dataclasses.dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device with the attributes that containers, labels and metrics need.

    index: its number on its GPU, the second one in NVIDIA's `0:1`. parent: UUID of the GPU. memory_bytes: memory of its
    GPU instance. multiprocessors, engines: from NVML's device attributes.
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
