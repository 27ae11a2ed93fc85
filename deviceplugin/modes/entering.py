"""Which GPUs are set up as they are assigned, as far as this process has made sure, and why others are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from deviceplugin.modes import setup
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)


REST_SECONDS: Final = 2.0


class Entering:
    """Sets GPUs up, and remembers of which that succeeded."""

    def __init__(self, set_up: setup.SetUp, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._set_up = set_up
        self._clock = clock
        self._in_vain: dict[str, tuple[Assignment, float]] = {}  # as what it was tried last, and when
        self._entered: set[str] = set()
        self._failed: dict[str, str] = {}

    @property
    def failed(self) -> Mapping[str, str]:
        """By UUID why a GPU could not be set up, or taken out of its mode."""
        return self._failed

    def rests(self, uuid: str, assignment: Assignment) -> bool:
        """Whether it was tried in vain just now. A try wakes whoever tries: this is the pause between two."""
        tried, at = self._in_vain.get(uuid, (None, 0.0))
        return tried == assignment and self._clock() - at < REST_SECONDS

    def has_entered(self, uuid: str) -> bool:
        """Whether this process has made sure that it is set up."""
        return uuid in self._entered

    def forget(self, uuid: str) -> None:
        """It may have been reset: whether it is set up is no longer known."""
        self._entered.discard(uuid)
        self._in_vain.pop(uuid, None)

    async def set_right(self, gpu: HardwareGpu, assignment: Assignment) -> str:
        """Set a GPU up again as what it is used for, be it in use; why that was not possible, or nothing."""
        try:
            await self._set_up.enter(gpu, assignment)
        except setup.SetUpError as error:
            return str(error)
        self._failed.pop(gpu.uuid, None)
        self._entered.add(gpu.uuid)
        return ""

    def forget_all_but(self, closed: Collection[str]) -> None:
        """What is not closed any more, and set up, has not failed any more."""
        self._failed = {uuid: why for uuid, why in self._failed.items() if uuid in closed or uuid not in self._entered}

    async def leave(self, gpu: HardwareGpu, was: Assignment | None, assignment: Assignment) -> bool:
        """Take a GPU out of what it was used for; whether that succeeded."""
        self._entered.discard(gpu.uuid)
        try:
            await self._set_up.leave(gpu, was, assignment)
        except setup.SetUpError as error:
            self._failed[gpu.uuid] = str(error)
            self._in_vain[gpu.uuid] = assignment, self._clock()
            extra = {"gpu": gpu.uuid, "was": str(was), "is": str(assignment), "err": str(error)}
            logger.warning("Could not take a GPU out of its mode", extra=extra)
            return False
        return True

    async def enter(self, gpu: HardwareGpu, assignment: Assignment) -> bool:
        """Set a GPU up; whether that succeeded."""
        try:
            await self._set_up.enter(gpu, assignment)
        except setup.SetUpError as error:
            if self._failed.get(gpu.uuid) != str(error):
                logger.warning("Could not set up a GPU", extra={"gpu": gpu.uuid, "err": str(error)})
            self._failed[gpu.uuid] = str(error)
            self._in_vain[gpu.uuid] = assignment, self._clock()
            return False
        self._failed.pop(gpu.uuid, None)
        self._entered.add(gpu.uuid)
        return True
