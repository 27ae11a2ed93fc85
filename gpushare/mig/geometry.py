"""Geometry: how a GPU can be cut. The memory slices are the places, the GPU slices are counted.

An instance occupies `memory_slices` places from one of the `starts` of its kind; that is NVIDIA's rule and not ours,
and it is why two 3g fit where a 3g and five 1g do not.
"""

from __future__ import annotations

import dataclasses

from gpushare.mig.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileGeometry:
    """A profile as one model of GPU has it.

    device_profile_id: the number that NVML's calls take (not the profile's number in NVML's header).
    most: how many there can be at once.
    """

    profile: Profile
    device_profile_id: int
    memory_slices: int
    starts: tuple[int, ...]
    most: int

    @property
    def gpu_slices(self) -> int:
        """How many of the GPU's slices it takes."""
        return self.profile.gpu_slices


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """The profiles of one model of GPU, and where their instances can lie."""

    name: str
    gpu_slices: int
    memory_slices: int
    kinds: tuple[ProfileGeometry, ...]

    def kind(self, profile: Profile) -> ProfileGeometry | None:
        """The kind of the GPU instance that `profile` is, or is a part of."""
        wanted = profile.gpu_instance
        return next((kind for kind in self.kinds if kind.profile == wanted), None)


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedInstance:
    """A GPU instance at its place."""

    kind: ProfileGeometry
    start: int

    @property
    def places(self) -> range:
        """The memory slices that it occupies."""
        return range(self.start, self.start + self.kind.memory_slices)
