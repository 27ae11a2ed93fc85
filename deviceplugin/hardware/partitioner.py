"""Partitions a GPU as the configuration wants: reads, plans and executes, until nothing is left to do.

Present instances that are wanted stay where they are, and only idle ones are destroyed. If an instance in use is in the
way, the whole GPU waits. The agent may be killed between any two driver calls: the GPU itself is the only state. The
caller must have withdrawn the GPU's devices, or the kubelet could allocate a device while it is being destroyed.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from deviceplugin.hardware import nvml_call, nvml_mig
from deviceplugin.state.node_state import GpuInstance, MigMode
from gpushare.mig import instance_layout
from gpushare.mig.instance_layout import Geometry, ProfileGeometry, Wanted
from gpushare.mig.profile import Profile

logger = logging.getLogger(__name__)

MAX_ROUNDS: Final = 4  # mode, partitioning, and two for changes by other programs


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


class MigState(enum.StrEnum):
    """The state of a GPU after a run."""

    AS_WANTED = "as-wanted"
    WAITING = "waiting"  # until an instance is no longer in use
    REFUSED = "refused"  # impossible on this GPU
    NEEDS_RESET = "needs-reset"  # the mode change takes effect at a reset of the GPU or a reboot
    FAILED = "failed"  # the driver reported an error


@dataclasses.dataclass(frozen=True, slots=True)
class MigPlan:
    """A plan for one GPU, or the result of a run. state: AS_WANTED if steps or run give it its devices.

    reason: a sentence in all other states. in_the_way: UUIDs of MIG devices or the GPU. changed: whether the run has
    changed MIG devices.
    """

    state: MigState
    steps: tuple[Step, ...] = ()
    reason: str = ""
    in_the_way: tuple[str, ...] = ()
    changed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Present:
    """The present state of one GPU. geometry: None if unknown for this model. busy: a process uses the whole GPU."""

    uuid: str
    mode: MigMode | None  # None if the GPU does not support MIG
    geometry: Geometry | None
    instances: tuple[GpuInstance, ...] = ()
    busy: bool = False


def make_plan(present: Present, wanted: Wanted | None, *, held: frozenset[str] = frozenset()) -> MigPlan:
    """Make the plan for one GPU.

    wanted: profiles with counts; None to turn MIG off. held: UUIDs of MIG devices and GPUs that pods hold, even if no
    process of theirs runs yet.
    """
    uuid, mode, geometry = present.uuid, present.mode, present.geometry
    used = _used(present.instances, held)
    if mode is None:
        why = f"{uuid} does not support MIG: leave it out of the config's mig entries"
        return MigPlan(MigState.REFUSED, reason=why) if wanted else MigPlan(MigState.AS_WANTED)
    if wanted is None and used:
        return _wait(present, used, "before MIG can be turned off")
    if wanted is None and not mode.current and not mode.pending:
        return MigPlan(MigState.AS_WANTED)
    if wanted is not None and geometry is not None:
        misfit = instance_layout.misfit(geometry, wanted)
        if misfit is not None:
            return MigPlan(MigState.REFUSED, reason=f"{uuid}: {misfit}")
    if wanted is None or not mode.current:
        if present.busy or uuid in held:
            return _wait(present, (uuid,), "before its MIG mode can change")
        removal = _destroyed(present.instances) if wanted is None else ()
        return MigPlan(MigState.AS_WANTED, (*removal, SetMode(wanted is not None)))
    if geometry is None:
        why = f"{uuid}: the driver does not report how it can be partitioned"
        return MigPlan(MigState.REFUSED, reason=why)
    return _cut(present, geometry, wanted, held)


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
            steps = list(_destroyed(instance for instance in present.instances if instance not in kept))
            for instance, parts in matches:
                lacking = collections.Counter(parts) - collections.Counter(part.slices for part in instance.parts)
                steps += [CreatePart(instance.id, slices) for slices in sorted(lacking.elements(), reverse=True)]
            steps += [Create(place.kind, place.start, parts) for place, (_, parts) in zip(places, missing, strict=True)]
            return MigPlan(MigState.AS_WANTED, tuple(steps))
    return _wait(present, tuple(sorted(used)), f"before it can have {instance_layout.shown(wanted)}")


def _keepable(instances: Sequence[GpuInstance], used: frozenset[str]) -> Iterator[tuple[GpuInstance, ...]]:
    """Yield the sets of instances that could stay, the largest first; each contains all instances in use."""
    fixed = [instance for instance in instances if any(part.uuid in used for part in instance.parts)]
    idle = [instance for instance in instances if instance not in fixed]
    for count in range(len(idle), -1, -1):
        for some in itertools.combinations(idle, count):
            yield (*fixed, *some)


def _matched(
    kept: Sequence[GpuInstance], needed: Sequence[tuple[ProfileGeometry, tuple[int, ...]]]
) -> tuple[list[tuple[GpuInstance, tuple[int, ...]]], list[tuple[ProfileGeometry, tuple[int, ...]]]] | None:
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


def _destroyed(instances: Iterable[GpuInstance]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for instance in instances:
        steps += [*(DestroyPart(instance.id, part.id) for part in instance.parts), Destroy(instance.id)]
    return tuple(steps)


def _used(instances: Sequence[GpuInstance], held: frozenset[str]) -> tuple[str, ...]:
    return tuple(part.uuid for instance in instances for part in instance.parts if part.busy or part.uuid in held)


def _wait(present: Present, used: tuple[str, ...], why: str) -> MigPlan:
    reason = f"{present.uuid} waits until {', '.join(used)} is no longer in use, {why}"
    return MigPlan(MigState.WAITING, reason=reason, in_the_way=used)


class Partitioner:
    """Partitions GPUs through the driver. Blocks for seconds when the MIG mode changes."""

    def __init__(self, driver: nvml_mig.MigDriver) -> None:
        self._driver = driver

    def read(self, uuid: str) -> Present:
        """Read the present state of a GPU. Raises NvmlError."""
        mode = self._driver.mig_mode(uuid)
        geometry = self._driver.mig_geometry(uuid) if mode is not None else None
        instances = self._driver.mig_instances(uuid) if mode is not None and mode.current else ()
        return Present(uuid, mode, geometry, instances, busy=bool(self._driver.processes(uuid)))

    def apply(self, uuid: str, wanted: Wanted | None, *, held: frozenset[str] = frozenset()) -> MigPlan:
        """Give the GPU these MIG devices; None turns MIG off. Driver errors are returned as a result."""
        changed = False
        for _ in range(MAX_ROUNDS):
            try:
                proposed = make_plan(self.read(uuid), wanted, held=held)
                if proposed.state is not MigState.AS_WANTED or not proposed.steps:
                    return dataclasses.replace(proposed, changed=changed)
                logger.info("Partitioning a GPU", extra={"gpu": uuid, "steps": [str(step) for step in proposed.steps]})
                changed = True
                waits = self._apply_steps(uuid, proposed.steps)
            except nvml_call.NvmlError as error:
                if error.code == nvml_mig.IN_USE:
                    why = f"{uuid} is in use again: {error}"
                    return MigPlan(MigState.WAITING, reason=why, in_the_way=(uuid,), changed=changed)
                return MigPlan(MigState.FAILED, reason=str(error), changed=changed)
            if waits:
                reason = f"{uuid}: the change of the MIG mode is pending ({waits}): reset the GPU or reboot the node"
                return MigPlan(MigState.NEEDS_RESET, reason=reason, changed=changed)
        why = f"{uuid} is being changed by another program: stop it"
        return MigPlan(MigState.FAILED, reason=why, changed=changed)

    def _apply_steps(self, uuid: str, steps: tuple[Step, ...]) -> str:
        """Execute the steps in order. Return why a mode change waits for a reset, or ""."""
        creates: list[Create] = []
        for step in steps:
            match step:
                case SetMode(enabled):
                    return self._driver.set_mig_mode(uuid, enabled=enabled)
                case DestroyPart(instance_id, part_id):
                    self._driver.destroy_compute_instance(uuid, instance_id, part_id)
                case Destroy(instance_id):
                    self._driver.destroy_gpu_instance(uuid, instance_id)
                case CreatePart(instance_id, slices):
                    self._driver.create_compute_instance(uuid, instance_id, slices)
                case Create():
                    creates.append(step)
        try:
            for step in creates:
                self._fill(uuid, self._driver.create_gpu_instance(uuid, step.kind, step.start), step.parts)
        except nvml_call.NvmlError as error:
            if error.code != nvml_mig.FUNCTION_NOT_FOUND:
                raise
            self._create_anywhere(uuid, creates)
        return ""

    def _fill(self, uuid: str, instance_id: int, parts: tuple[int, ...]) -> None:
        for slices in parts:
            self._driver.create_compute_instance(uuid, instance_id, slices)

    def _create_anywhere(self, uuid: str, creates: list[Create]) -> None:
        """Create the instances with a driver that chooses their places, in the first order that fits."""
        kinds = {step.kind.profile: step.kind for step in creates}
        wanted = collections.Counter(step.kind.profile for step in creates)

        def attempt(order: tuple[Profile, ...]) -> bool:
            left = list(creates)
            made: dict[int, Create] = {}
            for profile in order:
                try:
                    instance_id = self._driver.create_gpu_instance(uuid, kinds[profile], None)
                except nvml_call.NvmlError as error:
                    if error.code != nvml_mig.INSUFFICIENT_RESOURCES:
                        raise
                    for instance_id in made:
                        self._driver.destroy_gpu_instance(uuid, instance_id)
                    return False
                made[instance_id] = next(create for create in left if create.kind.profile == profile)
                left.remove(made[instance_id])
            for instance_id, step in made.items():
                self._fill(uuid, instance_id, step.parts)
            return True

        if instance_layout.first_that_works(wanted, attempt) is None:
            raise nvml_call.NvmlError(f"{uuid}: the driver could not place the instances in any order", 0)
