"""Geometry: how a GPU can be partitioned. Placements are memory slices; GPU slices are only counted.

An instance occupies `memory_slices` placements from one of the `starts` of its kind. That is NVIDIA's rule; it is why
two 3g fit where a 3g and five 1g do not.
"""

from __future__ import annotations

import dataclasses

from gpushare.mig.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileGeometry:
    """A profile on one GPU model.

    device_profile_id: the ID that NVML's calls take (not the profile's number in NVML's header). most: how many can
    exist at once.
    """

    profile: Profile
    device_profile_id: int
    memory_slices: int
    starts: tuple[int, ...]
    most: int

    @property
    def gpu_slices(self) -> int:
        """The number of GPU slices that it takes."""
        return self.profile.gpu_slices


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """The profiles of one GPU model, and the possible placements of their instances."""

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
    """A GPU instance at its placement."""

    kind: ProfileGeometry
    start: int

    @property
    def places(self) -> range:
        """The memory slices that it occupies."""
        return range(self.start, self.start + self.kind.memory_slices)
