"""Partitioner: makes a GPU what the config wants. Reads, plans, does; and reads again until there is nothing to do.

It may be killed between any two calls of the driver. What is there then is what the next run begins with, so nothing is
written down anywhere: the GPU is the state.

Whoever calls it has withdrawn the GPU's devices from the kubelet before, or the kubelet may give a device to a pod in
the very moment in which it is destroyed.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable
from typing import Final

from deviceplugin.hardware import nvml_call, nvml_mig
from deviceplugin.mig import mig_plan
from deviceplugin.mig.mig_plan import MigVerdict, Present
from gpushare.mig import instance_layout
from gpushare.mig.geometry import ProfileGeometry
from gpushare.mig.instance_layout import Wanted
from gpushare.mig.profile import Profile

logger = logging.getLogger(__name__)

ROUNDS: Final = 4  # mode, cut, and two more for what others did meanwhile


class MigState(enum.StrEnum):
    """What a GPU is after a run."""

    AS_WANTED = "as-wanted"
    WAITING = "waiting"  # for something in use
    REFUSED = "refused"  # it cannot be like that
    NEEDS_RESET = "needs-reset"  # the mode is set, and comes into force with a reset of the GPU or the node
    FAILED = "failed"  # the driver did not do it


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """reason: a sentence unless it is as wanted. in_the_way: UUIDs. changed: it has other MIG devices than before."""

    state: MigState
    reason: str = ""
    in_the_way: tuple[str, ...] = ()
    changed: bool = False


class Partitioner:
    """Cuts GPUs through the driver. Blocks while the driver works: seconds, at a change of mode."""

    def __init__(self, driver: nvml_mig.MigDriver) -> None:
        self._driver = driver

    def look(self, uuid: str) -> Present:
        """The GPU as it is. Raises NvmlError."""
        mode = self._driver.mig_mode(uuid)
        geometry = self._driver.mig_geometry(uuid) if mode is not None else None
        instances = self._driver.mig_instances(uuid) if mode is not None and mode.current else ()
        return Present(uuid, mode, geometry, instances, busy=bool(self._driver.processes(uuid)))

    def preview(self, uuid: str, wanted: Wanted | None, *, held: frozenset[str] = frozenset()) -> mig_plan.MigPlan:
        """What `apply` would begin with. Raises NvmlError."""
        return mig_plan.make(self.look(uuid), wanted, held=held)

    def apply(self, uuid: str, wanted: Wanted | None, *, held: frozenset[str] = frozenset()) -> Result:
        """Make the GPU have these MIG devices (None: not in MIG mode). Never raises for what the driver refuses."""
        changed = False
        for _ in range(ROUNDS):
            try:
                proposed = self.preview(uuid, wanted, held=held)
                if proposed.verdict is not MigVerdict.DO or not proposed.steps:
                    return _concluded(proposed, changed=changed)
                logger.info("Cutting a GPU", extra={"gpu": uuid, "steps": [str(step) for step in proposed.steps]})
                changed = True
                waits = self._do(uuid, proposed.steps)
            except nvml_call.NvmlError as error:
                return _failed(error, uuid, changed=changed)
            if waits:
                reason = (
                    f"{uuid}: the driver set MIG's mode but cannot change it now ({waits}): reset the GPU or the node"
                )
                return Result(MigState.NEEDS_RESET, reason, changed=changed)
        return Result(MigState.FAILED, f"{uuid} is changed by someone else at the same time: end that", changed=changed)

    def _do(self, uuid: str, steps: tuple[mig_plan.Step, ...]) -> str:
        """Do them in order; why a change of mode has to wait for a reset, or nothing."""
        creates: list[mig_plan.Create] = []
        for step in steps:
            match step:
                case mig_plan.SetMode(enabled):
                    return self._driver.set_mig_mode(uuid, enabled=enabled)
                case mig_plan.DestroyPart(instance_id, part_id):
                    self._driver.destroy_compute_instance(uuid, instance_id, part_id)
                case mig_plan.Destroy(instance_id):
                    self._driver.destroy_gpu_instance(uuid, instance_id)
                case mig_plan.CreatePart(instance_id, slices):
                    self._driver.create_compute_instance(uuid, instance_id, slices)
                case mig_plan.Create():
                    creates.append(step)
        try:
            for step in creates:
                self._fill(uuid, self._driver.create_gpu_instance(uuid, step.kind, step.start), step.parts)
        except nvml_call.NvmlError as error:
            if error.code != nvml_mig.FUNCTION_NOT_FOUND:
                raise
            self._do_anywhere(uuid, creates)
        return ""

    def _fill(self, uuid: str, instance_id: int, parts: tuple[int, ...]) -> None:
        for slices in parts:
            self._driver.create_compute_instance(uuid, instance_id, slices)

    def _do_anywhere(self, uuid: str, creates: list[mig_plan.Create]) -> None:
        """With a driver that chooses the places itself: in the first order in which it finds room for all."""
        kinds = {step.kind.profile: step.kind for step in creates}
        wanted = {profile: sum(step.kind.profile == profile for step in creates) for profile in kinds}
        if instance_layout.first_that_works(wanted, self._attempt(uuid, kinds, creates)) is None:
            raise nvml_call.NvmlError(f"{uuid}: the driver found no room in any order of making the instances", 0)

    def _attempt(
        self, uuid: str, kinds: dict[Profile, ProfileGeometry], creates: list[mig_plan.Create]
    ) -> Callable[[tuple[Profile, ...]], bool]:
        def attempt(order: tuple[Profile, ...]) -> bool:
            left = list(creates)
            made: list[int] = []
            filled: list[tuple[int, tuple[int, ...]]] = []
            for profile in order:
                try:
                    made.append(self._driver.create_gpu_instance(uuid, kinds[profile], None))
                except nvml_call.NvmlError as error:
                    if error.code != nvml_mig.INSUFFICIENT_RESOURCES:
                        raise
                    for instance_id in made:
                        self._driver.destroy_gpu_instance(uuid, instance_id)
                    return False
                step = next(create for create in left if create.kind.profile == profile)
                left.remove(step)
                filled.append((made[-1], step.parts))
            for instance_id, parts in filled:
                self._fill(uuid, instance_id, parts)
            return True

        return attempt


def _concluded(proposed: mig_plan.MigPlan, *, changed: bool) -> Result:
    states = {MigVerdict.DO: MigState.AS_WANTED, MigVerdict.WAIT: MigState.WAITING, MigVerdict.REFUSE: MigState.REFUSED}
    return Result(states[proposed.verdict], proposed.reason, proposed.in_the_way, changed)


def _failed(error: nvml_call.NvmlError, uuid: str, *, changed: bool) -> Result:
    if error.code == nvml_mig.IN_USE:
        return Result(MigState.WAITING, f"{uuid} came into use meanwhile: {error}", (uuid,), changed)
    return Result(MigState.FAILED, str(error), changed=changed)
