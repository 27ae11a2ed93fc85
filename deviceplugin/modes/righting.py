"""Which GPUs are not what they are used for, as somebody else has changed them; and how they are set right.

A GPU that cannot be set right is set aside: it takes nothing new, and why is told to everybody.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from deviceplugin.hardware.observation import Observation
from deviceplugin.modes import entering
from deviceplugin.modes.gpu_users import GpuUsers
from deviceplugin.report.announcing import NodeEvents
from gpushare import contract
from gpushare.modes.assignment import Assignment
from gpushare.modes.contradiction import contradiction
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)


class Righting:
    """`aside`: by UUID why a GPU cannot be used as it is to be, though nothing has failed."""

    def __init__(
        self,
        events: NodeEvents,
        observed: Observation,
        witness: GpuUsers,
        entered: entering.Entering,
    ) -> None:
        self._events = events
        self._observed = observed
        self._witness = witness
        self._entering = entered
        self.aside: dict[str, str] = {}

    def amiss(self, in_force: Mapping[str, Assignment | None]) -> dict[str, str]:
        """The GPUs that are not what is in force on them, and why. What is not healthy may not say how it is."""
        healthy = {gpu.uuid for gpu in self._observed.seen.gpus if gpu.healthy}
        known = ((gpu, in_force.get(gpu.uuid)) for gpu in self._observed.hardware_gpus if gpu.uuid in healthy)
        reasons = {gpu.uuid: contradiction(gpu, assignment) for gpu, assignment in known if assignment is not None}
        return {uuid: why for uuid, why in reasons.items() if why}

    def forget_all_but(self, closed: Collection[str]) -> None:
        """What takes something new again is not set aside."""
        self.aside = {uuid: why for uuid, why in self.aside.items() if uuid in closed}

    async def set_right(self, uuid: str, assignment: Assignment) -> bool:
        """Make a GPU, in use or not, again what it is used for; whether that succeeded."""
        gpu = self._gpu(uuid)
        if gpu is None:
            return False
        was = contradiction(gpu, assignment)
        unknown = f"who has devices of it is unknown ({self._witness.silent})" if self._witness.silent else ""
        problem = unknown or await self._entering.set_right(gpu, assignment)
        is_right = self.can_be_used(uuid, assignment, problem)
        if is_right:
            logger.warning("Set a GPU right, which somebody had changed", extra={"gpu": uuid, "was": was})
        return is_right

    def can_be_used(self, uuid: str, assignment: Assignment, problem: str = "") -> bool:
        """Whether a GPU that was set up, or not for that `problem`, is as it has to be; else it is told, once."""
        gpu = self._gpu(uuid)
        still = contradiction(gpu, assignment) if gpu is not None else "it is gone"
        why = ": ".join(dict.fromkeys(filter(None, (still, problem))))
        if not why:
            self.aside.pop(uuid, None)
        elif self.aside.get(uuid) != why:
            self.aside[uuid] = why
            number = f"GPU {gpu.index} ({uuid})" if gpu is not None else uuid
            logger.warning("A GPU is not what it is to be used for", extra={"gpu": uuid, "err": why})
            note = f"{number} is to be {assignment}, and cannot be used: {why}"
            self._events.tell(contract.EVENT_SET_ASIDE, note, warning=True)
        return not why

    def _gpu(self, uuid: str) -> HardwareGpu | None:
        return next((gpu for gpu in self._observed.hardware_gpus if gpu.uuid == uuid), None)
