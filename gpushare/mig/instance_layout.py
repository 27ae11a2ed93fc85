"""Which instances fit on a GPU together, where each goes, and what fits when they do not.

An exhaustive search: there are at most eight places. Instances of one kind are alike, so each takes a lower place than
the one before. Free places are taken from the end, which keeps the beginning for the large ones.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpushare.mig.geometry import Geometry, PlacedInstance, ProfileGeometry
from gpushare.mig.profile import Profile

Wanted = Mapping[Profile, int]
_SHOWN: Final = 3
_TRIED: Final = 2000  # parts of what was wanted, to say which fits; there may be thousands times as many


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A GPU instance to have, and the compute slices of each compute instance in it."""

    placed: PlacedInstance
    parts: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Infeasible:
    """They do not fit. `reason` is a sentence; `feasible` has the largest parts of what was wanted that do fit."""

    reason: str
    feasible: tuple[Wanted, ...] = ()

    def __str__(self) -> str:
        return self.reason


def search(
    geometry: Geometry, wanted: Wanted, *, taken: Sequence[PlacedInstance] = ()
) -> tuple[Planned, ...] | Infeasible:
    """Places for `wanted` beside what is `taken`, largest first; or why there are none."""
    foreign = [profile for profile, count in wanted.items() if count > 0 and not _is_known(geometry, profile)]
    if foreign:
        known = ", ".join(str(kind.profile) for kind in geometry.kinds)
        return Infeasible(f"{geometry.name} has no profile {foreign[0]}: it has {known}")
    parts = instances(geometry, wanted)
    chosen = places(geometry, [kind for kind, _ in parts], taken)
    if chosen is None:
        return _infeasible(geometry, wanted, taken)
    return tuple(Planned(place, sizes) for place, (_, sizes) in zip(chosen, parts, strict=True))


def _is_known(geometry: Geometry, profile: Profile) -> bool:
    return geometry.kind(profile) is not None and 0 < profile.compute_slices <= profile.gpu_slices


def shown(wanted: Wanted) -> str:
    """`2 × 1g.10gb + 1 × 3g.40gb`."""
    listed = [f"{count} × {profile}" for profile, count in wanted.items() if count > 0]
    return " + ".join(listed) or "no instance"


def instances(geometry: Geometry, wanted: Wanted) -> list[tuple[ProfileGeometry, tuple[int, ...]]]:
    """The GPU instances that `wanted` takes, largest first, with the sizes of the compute instances in each."""
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


def _fits(geometry: Geometry, instance: PlacedInstance, others: Sequence[PlacedInstance]) -> bool:
    occupied = {place for other in others for place in other.places}
    return (
        occupied.isdisjoint(instance.places)
        and sum(other.kind.gpu_slices for other in others) + instance.kind.gpu_slices <= geometry.gpu_slices
        and sum(other.kind.profile == instance.kind.profile for other in others) < instance.kind.most
    )


def places(
    geometry: Geometry, kinds: Sequence[ProfileGeometry], taken: Sequence[PlacedInstance]
) -> list[PlacedInstance] | None:
    """A place for each of `kinds`, in their order, alike ones beside each other; None if there is not room for all."""
    if (
        sum(kind.gpu_slices for kind in kinds) + sum(instance.kind.gpu_slices for instance in taken)
        > geometry.gpu_slices
    ):
        return None

    def place(number: int, made: list[PlacedInstance]) -> list[PlacedInstance] | None:
        if number == len(kinds):
            return made
        kind = kinds[number]
        alike = number > 0 and kinds[number - 1] == kind
        for start in reversed(kind.starts):
            if alike and start >= made[-1].start:
                continue
            instance = PlacedInstance(kind, start)
            if _fits(geometry, instance, [*taken, *made]):
                instances = place(number + 1, [*made, instance])
                if instances is not None:
                    return instances
        return None

    return place(0, [])


def _infeasible(geometry: Geometry, wanted: Wanted, taken: Sequence[PlacedInstance]) -> Infeasible:
    """With the largest parts of `wanted` that fit, those first that keep the most GPU slices."""
    most: tuple[int, int] | None = None
    feasible: list[Wanted] = []
    for part in _parts(geometry, wanted):
        worth = (sum(part.values()), sum(profile.compute_slices * count for profile, count in part.items()))
        if most is not None and (worth < most or len(feasible) == _SHOWN):
            break
        if places(geometry, [kind for kind, _ in instances(geometry, part)], taken) is not None:
            most = worth
            feasible.append(part)
    beside = f" beside {_shown_places(taken)}" if taken else ""
    fitting = "; of this, " + " or ".join(shown(part) for part in feasible) + " fits" if feasible else ""
    return Infeasible(
        f"{shown(wanted)} does not fit on {geometry.name}{beside}: it has {geometry.gpu_slices} GPU slices and "
        f"{geometry.memory_slices} places{fitting}",
        tuple(feasible),
    )


def _parts(geometry: Geometry, wanted: Wanted) -> Iterator[Wanted]:
    """Every part of `wanted` that has not too many slices, the largest first; the first `_TRIED` of them."""
    profiles = [profile for profile, count in wanted.items() if count > 0]

    def parts(number: int, left: int, slices: int) -> Iterator[tuple[int, ...]]:
        """The counts of the profiles from `number` on, so many instances of so many slices."""
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


def _shown_places(made: Sequence[PlacedInstance]) -> str:
    return ", ".join(f"{instance.kind.profile} at {instance.start}" for instance in made) or "nothing"
