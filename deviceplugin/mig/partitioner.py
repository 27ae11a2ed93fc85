"""Partitions a GPU as the configuration wants: reads, plans and executes, until nothing is left to do.

The agent may be killed between any two driver calls. The next run starts from the GPU's state at that time, so the GPU
itself is the only state. The caller must have withdrawn the GPU's devices from the kubelet; otherwise the kubelet could
allocate a device while it is being destroyed.
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
from gpushare.mig.instance_layout import ProfileGeometry, Wanted
from gpushare.mig.profile import Profile

logger = logging.getLogger(__name__)

MAX_ROUNDS: Final = 4  # mode, partitioning, and two for changes by other programs


class MigState(enum.StrEnum):
    """The state of a GPU after a run."""

    AS_WANTED = "as-wanted"
    WAITING = "waiting"  # until an instance is no longer in use
    REFUSED = "refused"  # impossible on this GPU
    NEEDS_RESET = "needs-reset"  # the mode change takes effect at a reset of the GPU or a reboot
    FAILED = "failed"  # the driver reported an error


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. reason: a sentence unless the GPU is as wanted. in_the_way: UUIDs. changed: whether MIG
    devices changed.
    """

    state: MigState
    reason: str = ""
    in_the_way: tuple[str, ...] = ()
    changed: bool = False


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

    def preview(self, uuid: str, wanted: Wanted | None, *, held: frozenset[str] = frozenset()) -> mig_plan.MigPlan:
        """Return the plan that `apply` would start with. Raises NvmlError."""
        return mig_plan.make(self.read(uuid), wanted, held=held)

    def apply(self, uuid: str, wanted: Wanted | None, *, held: frozenset[str] = frozenset()) -> Result:
        """Give the GPU these MIG devices; None turns MIG off. Driver errors are returned as a Result."""
        changed = False
        for _ in range(MAX_ROUNDS):
            try:
                proposed = self.preview(uuid, wanted, held=held)
                if proposed.verdict is not MigVerdict.DO or not proposed.steps:
                    return _concluded(proposed, changed=changed)
                logger.info("Partitioning a GPU", extra={"gpu": uuid, "steps": [str(step) for step in proposed.steps]})
                changed = True
                waits = self._apply_steps(uuid, proposed.steps)
            except nvml_call.NvmlError as error:
                return _failed(error, uuid, changed=changed)
            if waits:
                reason = f"{uuid}: the change of the MIG mode is pending ({waits}): reset the GPU or reboot the node"
                return Result(MigState.NEEDS_RESET, reason, changed=changed)
        return Result(MigState.FAILED, f"{uuid} is being changed by another program: stop it", changed=changed)

    def _apply_steps(self, uuid: str, steps: tuple[mig_plan.Step, ...]) -> str:
        """Execute the steps in order. Return why a mode change waits for a reset, or ""."""
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
            self._create_anywhere(uuid, creates)
        return ""

    def _fill(self, uuid: str, instance_id: int, parts: tuple[int, ...]) -> None:
        for slices in parts:
            self._driver.create_compute_instance(uuid, instance_id, slices)

    def _create_anywhere(self, uuid: str, creates: list[mig_plan.Create]) -> None:
        """Create the instances with a driver that chooses their places, in the first order that fits."""
        kinds = {step.kind.profile: step.kind for step in creates}
        wanted = {profile: sum(step.kind.profile == profile for step in creates) for profile in kinds}
        if instance_layout.first_that_works(wanted, self._attempt(uuid, kinds, creates)) is None:
            raise nvml_call.NvmlError(f"{uuid}: the driver could not place the instances in any order", 0)

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
        return Result(MigState.WAITING, f"{uuid} is in use again: {error}", (uuid,), changed)
    return Result(MigState.FAILED, str(error), changed=changed)
