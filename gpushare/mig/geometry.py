"""Geometry: how a GPU can be partitioned. Memory slices have places; GPU slices are only counted.

An instance occupies `memory_slices` places from one of the `starts` of its kind. That is NVIDIA's rule, and the reason
why two 3g fit where a 3g and five 1g do not.
"""

from __future__ import annotations

import dataclasses

from gpushare.mig.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileGeometry:
    """A profile on one model of GPU.

    device_profile_id: the number for NVML's calls (not the profile's number in NVML's header). most: how many fit on
    one GPU.
    """

    profile: Profile
    device_profile_id: int
    memory_slices: int
    starts: tuple[int, ...]
    most: int

    @property
    def gpu_slices(self) -> int:
        """How many GPU slices it uses."""
        return self.profile.gpu_slices


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """The profiles of one model of GPU, and the possible places of their instances."""

    name: str
    gpu_slices: int
    memory_slices: int
    kinds: tuple[ProfileGeometry, ...]

    def kind(self, profile: Profile) -> ProfileGeometry | None:
        """Return the kind of the GPU instance that `profile` is, or is a part of."""
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
