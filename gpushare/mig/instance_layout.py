"""Decides which instances fit on a GPU together, where each goes, and which part fits if not all do.

An instance occupies `memory_slices` placements from one of the `starts` of its kind; GPU slices are only counted. That
is NVIDIA's rule; it is why two 3g fit where a 3g and five 1g do not. The search is exhaustive: there are at most eight
memory slices. Instances of one kind are interchangeable, so each takes a lower placement than the one before.
Placements are taken from the end, which keeps the beginning free for large ones.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from gpushare.mig import parted
from gpushare.mig.profile import Profile, parse

Wanted = Mapping[Profile, int]
_SHOWN: Final = 3
_TRIED: Final = 2000  # parts of a request that are tried; there may be thousands of times as many


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileGeometry:
    """A profile on one GPU model."""

    profile: Profile
    device_profile_id: int  # the ID that NVML's calls take (not the profile's number in NVML's header)
    memory_slices: int
    starts: tuple[int, ...]
    most: int  # how many can exist at once
    memory_bytes: int = 0  # of an instance; 0 if unknown

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


def misfit(geometry: Geometry, wanted: Wanted) -> str | None:
    """Return why `wanted` does not fit on an empty GPU, and the largest parts that do; None if it fits."""
    foreign = [profile for profile, count in wanted.items() if count > 0 and not _is_known(geometry, profile)]
    if foreign:
        known = ", ".join(str(kind.profile) for kind in geometry.kinds)
        return f"{geometry.name} has no profile {foreign[0]}: it has {known}"
    if fits(geometry, wanted):
        return None
    largest = " or ".join(shown(part) for part in largest_parts(geometry, wanted))
    return (
        f"{shown(wanted)} does not fit on {geometry.name}: it has {geometry.gpu_slices} GPU slices and "
        f"{geometry.memory_slices} memory slices{f'; {largest} would fit' if largest else ''}"
    )


def named(wanted: Mapping[str, int]) -> Wanted:
    """Return profiles with counts, from names with counts, without those of 0. Raises ProfileError."""
    counts: dict[Profile, int] = {}
    for kind, count in ((parse(name), count) for name, count in wanted.items()):
        if count > 0:
            counts[kind] = counts.get(kind, 0) + count
    return counts


def config_error(geometry: Geometry, wanted: Mapping[str, int] | None) -> str | None:
    """Return why a GPU cannot have these instances, as a sentence; None if it can."""
    try:
        parted.read_wanted(wanted)
    except parted.PartedError as error:
        return str(error)
    return misfit(geometry, named(wanted or {}))


def fits(geometry: Geometry, wanted: Wanted) -> bool:
    """Whether an empty GPU has all of `wanted`, profiles and placements."""
    known = all(_is_known(geometry, profile) for profile in wanted)
    return known and places(geometry, [kind for kind, _ in instances(geometry, wanted)]) is not None


def _is_known(geometry: Geometry, profile: Profile) -> bool:
    return geometry.kind(profile) is not None and 0 < profile.compute_slices <= profile.gpu_slices


def shown(wanted: Wanted) -> str:
    """Return `2 × 1g.10gb + 1 × 3g.40gb`."""
    listed = [f"{count} × {profile}" for profile, count in wanted.items() if count > 0]
    return " + ".join(listed) or "no instance"


def instances(geometry: Geometry, wanted: Wanted) -> list[tuple[ProfileGeometry, tuple[int, ...]]]:
    """Return the GPU instances that `wanted` takes, largest first, with the sizes of the compute instances in each."""
    parts: list[tuple[ProfileGeometry, tuple[int, ...]]] = []
    for kind in geometry.kinds:
        sizes = [
            profile.compute_slices
            for profile, count in wanted.items()
            if profile.gpu_instance == kind.profile
            for _ in range(min(count, kind.most * kind.gpu_slices + 1))
        ]
        bins: list[list[int]] = []
        for size in sorted(sizes, reverse=True):
            roomy = next((instance for instance in bins if sum(instance) + size <= kind.gpu_slices), None)
            if roomy is None:
                bins.append([size])
            else:
                roomy.append(size)
        parts += [(kind, tuple(instance)) for instance in bins]
    return sorted(parts, key=lambda part: (-part[0].memory_slices, -part[0].gpu_slices, part[0].device_profile_id))


def places(
    geometry: Geometry, kinds: Sequence[ProfileGeometry], taken: Sequence[PlacedInstance] = ()
) -> list[PlacedInstance] | None:
    """Return a placement for each of `kinds`, in order, equal ones adjacent; None if not all fit."""
    slices = sum(kind.gpu_slices for kind in (*kinds, *(instance.kind for instance in taken)))
    if slices > geometry.gpu_slices:
        return None

    def place(number: int, made: list[PlacedInstance]) -> list[PlacedInstance] | None:
        if number == len(kinds):
            return made
        kind = kinds[number]
        alike = number > 0 and kinds[number - 1] == kind
        for start in reversed(kind.starts):
            if alike and start >= made[-1].start:
                continue
            instance, others = PlacedInstance(kind, start), [*taken, *made]
            is_free = {place for other in others for place in other.places}.isdisjoint(instance.places)
            if is_free and sum(other.kind.profile == kind.profile for other in others) < kind.most:
                instances = place(number + 1, [*made, instance])
                if instances is not None:
                    return instances
        return None

    return place(0, [])


def largest_parts(geometry: Geometry, wanted: Wanted) -> list[Wanted]:
    """Return at most three parts of `wanted` that fit: the most instances, then the most compute slices."""
    most: tuple[int, int] | None = None
    largest: list[Wanted] = []
    for part in _parts(geometry, wanted):
        worth = (sum(part.values()), sum(profile.compute_slices * count for profile, count in part.items()))
        if most is not None and (worth < most or len(largest) == _SHOWN):
            break
        if fits(geometry, part):
            most = worth
            largest.append(part)
    return largest


def _parts(geometry: Geometry, wanted: Wanted) -> Iterator[Wanted]:
    """Return the parts of `wanted` without too many slices, the largest first; at most `_TRIED`."""
    profiles = [profile for profile, count in wanted.items() if count > 0]

    def parts(number: int, left: int, slices: int) -> Iterator[tuple[int, ...]]:
        """Yield counts of the profiles from `number` on: of `left` instances with `slices` slices together."""
        if number == len(profiles):
            if left == slices == 0:
                yield ()
            return
        if not left <= slices <= left * geometry.gpu_slices:
            return
        size = profiles[number].compute_slices
        for count in range(min(wanted[profiles[number]], left, slices // size), -1, -1):
            for rest in parts(number + 1, left - count, slices - count * size):
                yield (count, *rest)

    all_counts = (
        counts
        for instances_in_it in range(geometry.gpu_slices, 0, -1)
        for slices in range(geometry.gpu_slices, instances_in_it - 1, -1)
        for counts in parts(0, instances_in_it, slices)
    )
    for counts in itertools.islice(all_counts, _TRIED):
        yield {profile: count for profile, count in zip(profiles, counts, strict=True) if count}


def distinct(wanted: Wanted) -> Iterator[tuple[Profile, ...]]:
    """Yield every distinct order, the largest first."""

    def order(left: tuple[Profile, ...]) -> Iterator[tuple[Profile, ...]]:
        if not left:
            yield ()
        for profile in dict.fromkeys(left):
            rest = list(left)
            rest.remove(profile)
            for tail in order(tuple(rest)):
                yield (profile, *tail)

    def size(profile: Profile) -> tuple[int, int, int, tuple[str, ...]]:
        return profile.gpu_slices, profile.compute_slices, profile.memory_gb, profile.with_

    return order(tuple(profile for profile in sorted(wanted, key=size, reverse=True) for _ in range(wanted[profile])))


def first_that_works(wanted: Wanted, attempt: Callable[[tuple[Profile, ...]], bool]) -> tuple[Profile, ...] | None:
    """Return the first order of creation for which `attempt` returns true; None if none works.

    A driver that chooses the placements itself may put a 1g where a 3g could have been, so the order matters.
    """
    return next((order for order in distinct(wanted) if attempt(order)), None)
