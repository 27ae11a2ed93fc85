"""Plans the steps that change one GPU's MIG instances to the wanted ones. Pure.

Present instances that are wanted stay where they are, and only idle ones are destroyed. If an instance in use is in the
way, the whole GPU waits, so that nothing is half-applied on purpose. After an interruption, the next plan starts from
the instances that exist then; a GPU that is as wanted has a plan without steps.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
from collections.abc import Iterator, Sequence

from deviceplugin.state.node_state import GpuInstance, MigMode
from gpushare.mig import instance_layout
from gpushare.mig.geometry import Geometry, ProfileGeometry
from gpushare.mig.instance_layout import Wanted


@dataclasses.dataclass(frozen=True, slots=True)
class SetMode:
    """Turn MIG on or off. The possible instances are known only afterwards, so plan again."""

    enabled: bool


@dataclasses.dataclass(frozen=True, slots=True)
class DestroyPart:
    """Destroy a compute instance."""

    instance_id: int
    part_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class Destroy:
    """Destroy a GPU instance that has no compute instances left."""

    instance_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    """Create a GPU instance at a place, with its compute instances."""

    kind: ProfileGeometry
    start: int
    parts: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CreatePart:
    """Create a compute instance that a GPU instance lacks."""

    instance_id: int
    slices: int


Step = SetMode | DestroyPart | Destroy | Create | CreatePart


class MigVerdict(enum.StrEnum):
    """The outcome of planning."""

    DO = "do"  # execute the steps; without steps the GPU is as wanted
    WAIT = "wait"  # an instance in use is in the way
    REFUSE = "refuse"  # impossible on this GPU model


@dataclasses.dataclass(frozen=True, slots=True)
class MigPlan:
    """A plan for one GPU. reason: a sentence unless the verdict is DO. in_the_way: UUIDs of MIG devices or the GPU."""

    verdict: MigVerdict
    steps: tuple[Step, ...] = ()
    reason: str = ""
    in_the_way: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Present:
    """The present state of one GPU. geometry: None if unknown for this model. busy: a process uses the whole GPU."""

    uuid: str
    mode: MigMode | None  # None if the GPU does not support MIG
    geometry: Geometry | None
    instances: tuple[GpuInstance, ...] = ()
    busy: bool = False


def make(present: Present, wanted: Wanted | None, *, held: frozenset[str] = frozenset()) -> MigPlan:
    """Make the plan for one GPU.

    wanted: profiles with counts; None to turn MIG off. held: UUIDs of MIG devices and GPUs that pods hold, even if no
    process of theirs runs yet.
    """
    if present.mode is None:
        if not wanted:
            return MigPlan(MigVerdict.DO)
        return MigPlan(
            MigVerdict.REFUSE, reason=f"{present.uuid} does not support MIG: leave it out of the config's mig entries"
        )
    if wanted is None:
        return _off(present, present.mode, held)
    if present.geometry is not None:
        misfit = instance_layout.misfit(present.geometry, wanted)
        if misfit is not None:
            return MigPlan(MigVerdict.REFUSE, reason=f"{present.uuid}: {misfit}")
    if not present.mode.current:
        return _mode_step(present, held, enabled=True)
    if present.geometry is None:
        return MigPlan(
            MigVerdict.REFUSE, reason=f"{present.uuid}: the driver does not report how it can be partitioned"
        )
    return _cut(present, present.geometry, wanted, held)


def _off(present: Present, mode: MigMode, held: frozenset[str]) -> MigPlan:
    used = _used(present.instances, held)
    if used:
        return _wait(present, used, "before MIG can be turned off")
    removal = tuple(itertools.chain.from_iterable(_destroy(instance) for instance in present.instances))
    if not mode.current and not mode.pending:
        return MigPlan(MigVerdict.DO)
    turned_off = _mode_step(present, held, enabled=False)
    return dataclasses.replace(turned_off, steps=removal + turned_off.steps)


def _mode_step(present: Present, held: frozenset[str], *, enabled: bool) -> MigPlan:
    if present.busy or present.uuid in held:
        return _wait(present, (present.uuid,), "before its MIG mode can change")
    return MigPlan(MigVerdict.DO, (SetMode(enabled),))


def _cut(present: Present, geometry: Geometry, wanted: Wanted, held: frozenset[str]) -> MigPlan:
    needed = instance_layout.instances(geometry, wanted)
    used = frozenset(_used(present.instances, held))
    for kept in _keepable(present.instances, used):
        matched = _matched(kept, needed)
        if matched is None:
            continue
        matches, missing = matched
        places = instance_layout.places(geometry, [kind for kind, _ in missing], [instance.placed for instance in kept])
        if places is not None:
            removed = [instance for instance in present.instances if instance not in kept]
            steps: list[Step] = [step for instance in removed for step in _destroy(instance)]
            steps += [step for instance, parts in matches for step in _completed(instance, parts)]
            steps += [Create(place.kind, place.start, parts) for place, (_, parts) in zip(places, missing, strict=True)]
            return MigPlan(MigVerdict.DO, tuple(steps))
    return _wait(present, tuple(sorted(used)), f"before it can have {instance_layout.shown(wanted)}")


def _keepable(instances: Sequence[GpuInstance], used: frozenset[str]) -> Iterator[tuple[GpuInstance, ...]]:
    """Yield the sets of instances that could stay, the largest first; each contains all instances in use."""
    fixed = [instance for instance in instances if any(part.uuid in used for part in instance.parts)]
    idle = [instance for instance in instances if instance not in fixed]
    for count in range(len(idle), -1, -1):
        for some in itertools.combinations(idle, count):
            yield (*fixed, *some)


_Needed = tuple[ProfileGeometry, tuple[int, ...]]


def _matched(
    kept: Sequence[GpuInstance], needed: Sequence[_Needed]
) -> tuple[list[tuple[GpuInstance, tuple[int, ...]]], list[_Needed]] | None:
    """Match each kept instance to a wanted one, and return the rest; None if a kept instance is not wanted."""
    missing = list(needed)
    matches = []
    # Match the fullest instances first: an empty one can become anything of its kind.
    for instance in sorted(kept, key=lambda instance: -len(instance.parts)):
        has = collections.Counter(part.slices for part in instance.parts)
        fits = [
            want for want in missing if want[0].profile == instance.kind.profile and has <= collections.Counter(want[1])
        ]
        if not fits:
            return None
        closest = min(fits, key=lambda want: len(want[1]))
        missing.remove(closest)
        matches.append((instance, closest[1]))
    return matches, missing


def _completed(instance: GpuInstance, parts: tuple[int, ...]) -> Iterator[Step]:
    lacking = collections.Counter(parts) - collections.Counter(part.slices for part in instance.parts)
    for slices in sorted(lacking.elements(), reverse=True):
        yield CreatePart(instance.id, slices)


def _destroy(instance: GpuInstance) -> Iterator[Step]:
    for part in instance.parts:
        yield DestroyPart(instance.id, part.id)
    yield Destroy(instance.id)


def _used(instances: Sequence[GpuInstance], held: frozenset[str]) -> tuple[str, ...]:
    return tuple(part.uuid for instance in instances for part in instance.parts if part.busy or part.uuid in held)


def _wait(present: Present, used: tuple[str, ...], why: str) -> MigPlan:
    reason = f"{present.uuid} waits until {', '.join(used)} is no longer in use, {why}"
    return MigPlan(MigVerdict.WAIT, reason=reason, in_the_way=used)
