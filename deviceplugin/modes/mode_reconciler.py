"""Makes the GPUs what the cluster wants them to be, one after the other, and never one that is in use.

What is to be decided, and what others see of it, is in the pure modules beside this one; here is the order in which
things are asked, written down and done. What is on disk comes before what is done to a GPU, and what is told comes
after.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.hardware import observation
from deviceplugin.modes import (
    adopting,
    choosing,
    configured_gpus,
    desired_config,
    entering,
    mode_checkpoint,
    presenting,
    righting,
    setup,
    statement,
    transition,
)
from deviceplugin.modes.cluster_config import Configuration
from deviceplugin.modes.gpu_users import GpuUsers
from deviceplugin.report.announcing import NodeEvents
from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.state import node_state
from deviceplugin.state.allocatable import Stabilized
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from gpushare import contract
from gpushare.cluster import api_errors
from gpushare.config import config_choice
from gpushare.config.node_settings import NodeSettings
from gpushare.gpu import Mode
from gpushare.modes import offering
from gpushare.modes.assignment import Assignment
from gpushare.modes.contradiction import contradiction, is_permanent

logger = logging.getLogger(__name__)

PENDING_SECONDS: Final = 3.0  # between two looks at who uses a GPU that is to change
LOOK_SECONDS: Final = 60.0
FAILED_SECONDS: Final = 30.0


class ModeReconciler:
    """The loop, which `wake` restarts. It writes all of the state but what the `observation` has seen.

    failure: of a GPU, by UUID, why it cannot be shared by MPS now, empty when it can; path: the book.
    """

    def __init__(
        self,
        configuration: Configuration,
        gpunode: GpuNodeCopy,
        status: GpuNodeStatus,
        events: NodeEvents,
        observed: observation.Observation,
        state: node_state.NodeState,
        *,
        wake: asyncio.Event,
        witness: GpuUsers,
        set_up: setup.SetUp,
        path: Path,
        options: desired_config.ModeOptions,
        allocatable: Stabilized,
        failure: Callable[[str], str],
    ) -> None:
        self._configuration = configuration
        self._gpunode = gpunode
        self._status = status
        self._events = events
        self._allocatable = allocatable
        self._observed = observed
        self._state = state
        self._failure = failure
        self._witness = witness
        self._entering = entering.Entering(set_up)
        self._path = path
        self._choosing = choosing.Choosing(
            configuration, options, lambda problem: events.tell(contract.EVENT_CONFIG_INVALID, problem, warning=True)
        )
        known = _read(path)
        self._is_first = known is None
        self._book = known or mode_checkpoint.Checkpoint(config_choice.BUILT_IN)
        self._closed: frozenset[str] = frozenset()
        self._left_out = False  # what was tried in vain just now, in this step
        self._unwritten = ""  # why the book cannot be written; empty where it can
        self._blocked: dict[str, str] = {}  # what cannot be changed now, for its own sake
        self._righting = righting.Righting(events, observed, witness, self._entering)
        self._wake = wake
        self.said = asyncio.Event()  # set once others were told of the GPUs
        self._said_waiting: Mapping[str, tuple[str, ...]] = {}  # and of who is in the way
        self._settings = NodeSettings()

    async def run(self) -> None:
        """Step when something wakes it, or its pause is over, until cancelled."""
        self._observed.seen.wake(self._wake)
        await self._witness.ask_kubelet()  # a counter that is in use must never be missing from a list
        while True:
            self._wake.clear()
            pause_seconds = await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._wake.wait()

    async def step(self) -> float:
        """Do what can be done now; return after how many seconds to look again at the latest."""
        if self._is_first and not self._configuration.is_known:
            return LOOK_SECONDS  # what pods are given by a guess keeps its GPU from what it is to be
        if not await self._choose() and self._is_first:
            if self._choosing.desired is None:
                self._say({})  # that nothing is in force
            return FAILED_SECONDS if self._unwritten else LOOK_SECONDS
        self._blocked, self._left_out = {}, False
        await self._begin(self._wanted)
        while True:  # close, then ask, then change: at most three turns, as nothing differs again in between
            asked = self._closed
            users = await self._users(asked) if asked else {}
            amiss = self._righting.amiss(self._book.gpus)
            moves = transition.plan(self._book.gpus, self._wanted, closed=asked, users=users, amiss=amiss.keys())
            self._closed = moves.closed
            self._entering.forget_all_but(moves.closed)
            self._righting.forget_all_but(moves.closed)
            self._say(moves.waiting)
            if moves.right:
                await self._set_right(moves.right)
                self._say(moves.waiting)
            if moves.change:
                await self._change(moves.change, moves.waiting)
                self._say(moves.waiting)
            if moves.closed <= asked:
                break
        failed = self._entering.failed or self._unwritten
        pause_seconds = FAILED_SECONDS if failed else PENDING_SECONDS if self._closed else LOOK_SECONDS
        pause_seconds = entering.REST_SECONDS if self._left_out else pause_seconds
        return min(pause_seconds, self._allocatable.falls_in_seconds)

    async def _choose(self) -> bool:
        """Know what is wanted; whether there is anything good that is."""
        current = None if self._is_first else self._book.current
        gpus = [dataclasses.replace(gpu, ours=self._is_ours(gpu.uuid)) for gpu in self._observed.hardware_gpus]
        seated = configured_gpus.seated(gpus, self._book.seats)
        unread = configured_gpus.unread(seated, [gpu.index for gpu in self._observed.unread.value])
        desired = await self._choosing.choose(current, (*gpus, *unread), (*seated, *unread))
        if desired is None:
            return False
        self._settings = desired.settings
        is_same = not self._is_first and self._book.current == desired.config
        kept = (
            self._book.seats
            if is_same and configured_gpus.missing(gpus, self._book.seats)
            else configured_gpus.of(gpus)
        )
        if not is_same or tuple(self._book.seats) != tuple(kept):
            await self._write(dataclasses.replace(self._book, current=desired.config, seats=kept))
        return not self._is_first

    def _is_ours(self, uuid: str) -> bool:
        last = self._book.last(uuid)
        return last is not None and last.partition is not None

    @property
    def _wanted(self) -> Mapping[str, Assignment]:
        desired = self._choosing.desired.assignments if self._choosing.desired is not None else {}
        return {uuid: assignment for uuid, assignment in desired.items() if not configured_gpus.is_unread(uuid)}

    async def _begin(self, wanted: Mapping[str, Assignment]) -> None:
        """Know of every GPU what it is used for, and have it set up: at our start, and for one that is new."""
        node = self._gpunode.now()
        allocations = node.allocations if node is not None else ()
        healthy = {gpu.uuid for gpu in self._observed.seen.gpus if gpu.healthy}
        for gpu in self._observed.hardware_gpus:
            if gpu.uuid not in self._book.gpus and gpu.uuid in wanted:
                known = self._book.of(gpu.uuid, adopting.adopted(gpu, wanted[gpu.uuid], allocations))
                if not await self._write(known):
                    continue
            if gpu.uuid not in healthy:
                self._entering.forget(gpu.uuid)  # it is reset before it is healthy again
                continue
            assignment = self._book.gpus.get(gpu.uuid)
            is_ready = assignment is None or self._entering.has_entered(gpu.uuid)
            if assignment is not None and not is_ready and not contradiction(gpu, assignment):
                if self._rests(gpu.uuid, assignment):
                    continue
                await self._entering.enter(gpu, assignment)

    def _rests(self, uuid: str, assignment: Assignment) -> bool:
        is_resting = self._entering.rests(uuid, assignment)
        self._left_out |= is_resting
        return is_resting

    async def _users(self, closed: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """Who uses the GPUs that take nothing new, asked after everybody was told that they do not."""
        unknown: dict[str, str] = {}
        node = None
        in_force = self._book.gpus
        shared = [
            uuid for uuid in closed if (assignment := in_force.get(uuid)) is None or assignment.mode is Mode.FRACTIONAL
        ]
        if shared:
            try:
                node = await self._status.settled()
            except api_errors.ClusterError as error:
                unknown = dict.fromkeys(shared, f"the ledger cannot be asked: {error}")
        allocations = node.allocations if node is not None else ()
        gpus = [gpu for gpu in self._observed.hardware_gpus if gpu.uuid in closed]
        return await self._witness.users(gpus, allocations=allocations, unknown=unknown)

    async def _set_right(self, uuids: Collection[str]) -> None:
        for uuid in sorted(uuids):
            assignment = self._book.gpus[uuid]
            if assignment is not None and await self._righting.set_right(uuid, assignment):
                self._closed -= {uuid}

    async def _change(self, change: Mapping[str, Assignment], waiting: Mapping[str, tuple[str, ...]]) -> None:
        gpus = {gpu.uuid: gpu for gpu in self._observed.hardware_gpus}
        healthy = {gpu.uuid for gpu in self._observed.seen.gpus if gpu.healthy}
        for uuid, assignment in change.items():
            if uuid not in gpus or uuid not in healthy:
                self._blocked[uuid] = "the GPU is not healthy; it is changed once it is"
                continue
            if is_permanent(gpus[uuid], assignment):
                self._righting.can_be_used(uuid, assignment)
                continue
            if self._rests(uuid, assignment):
                continue
            before = self._book.last(uuid)
            if not await self._write(self._book.of(uuid, None)):
                self._blocked[uuid] = self._unwritten
                continue
            self._say(waiting)
            left = await self._entering.leave(gpus[uuid], before, assignment)
            entered = left and await self._entering.enter(gpus[uuid], assignment)
            usable = entered and self._righting.can_be_used(uuid, assignment)
            if usable and await self._write(self._book.of(uuid, assignment)):
                self._closed -= {uuid}
                extra = {"gpu": uuid, "was": str(before), "is": str(assignment)}
                logger.info("Changed a GPU", extra=extra)
        if not self._closed and not self._choosing.problem:
            name = self._book.current.name or "without a name"
            self._events.tell(contract.EVENT_CONFIG_APPLIED, f"configuration {name} is in force on every GPU")

    def say_again(self) -> None:
        """Tell everybody of what was seen since, also while a step waits for a driver that hangs."""
        if self.said.is_set():
            self._say(self._said_waiting)

    def _say(self, waiting: Mapping[str, tuple[str, ...]]) -> None:
        """Tell everybody how it is now."""
        self._said_waiting = waiting
        in_force, hardware, failed = self._book.gpus, self._observed.hardware_gpus, self._entering.failed
        # What could not be set up is not offered, though the book has it.
        ready = {uuid: assignment for uuid, assignment in in_force.items() if uuid not in failed}
        gpus = presenting.gpus(self._observed.seen.gpus, in_force, self._wanted, self._closed, hardware)
        offered = offering.offer(hardware, {uuid: assignment for uuid, assignment in ready.items() if assignment})
        self._state.in_force.publish(node_state.ModesInForce(offered, self._settings, self._closed, in_force))
        self._state.gpus.publish(gpus)
        self._state.allocatable.publish(self._allocatable(gpus))
        self._state.advertised.publish(
            presenting.advertised(
                gpus,
                hardware,
                ready,
                closed=self._closed,
                in_use=self._witness.allocated_ids,
                ill=self._observed.ill | self._without_daemon(offered),
                usable=self._state.allocatable.value,
            )
        )
        self._state.statement.publish(
            statement.statement(
                config=None if self._is_first else self._book.current,
                problem=self._choosing.problem,
                warnings=self._warnings(),
                gpus=gpus,
                wanted=self._wanted,
                waiting={uuid: users for uuid, users in waiting.items() if uuid in self._closed},
                failed={**self._righting.aside, **failed, **self._blocked},
                changing=self._closed | failed.keys(),
            )
        )
        self.said.set()

    def _without_daemon(self, offered: offering.Offer) -> frozenset[str]:
        """What is not healthy though its GPU is: the devices of GPUs whose MPS daemon does not run."""
        devices = (device for ids in offered.values() for device in ids if device.mode is Mode.MPS)
        return frozenset(device.device for device in devices if self._failure(device.gpu))

    def _warnings(self) -> tuple[str, ...]:
        gone = configured_gpus.missing(self._observed.hardware_gpus, self._book.seats)
        absent = (
            f"GPU {gpu.index} ({gpu.uuid}) is not there: the configuration counts it all the same" for gpu in gone
        )
        chosen = self._choosing.desired.warnings if self._choosing.desired is not None else ()
        return (*chosen, *absent, *filter(None, (self._unwritten,)))

    async def _write(self, changed: mode_checkpoint.Checkpoint) -> bool:
        """Write it down before it is so. Where the disk takes nothing all stays as it is, and it is tried again.

        In a thread: a disk may take its time, and the kubelet is answered meanwhile. What is closed stays closed.
        Who cancels this waits for the disk as well, for the thread goes on all the same: what it has written is so.
        """
        writing = asyncio.create_task(asyncio.to_thread(mode_checkpoint.write, self._path, changed))
        try:
            await asyncio.wait((writing,))
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            self._written(changed, writing)
            raise
        return self._written(changed, writing)

    def _written(self, changed: mode_checkpoint.Checkpoint, writing: asyncio.Task[None]) -> bool:
        try:
            writing.result()
        except OSError as error:
            said = f"{self._path} cannot be written: {error.strerror or error}; what GPUs are used for stays as it is"
            if said != self._unwritten:
                logger.warning("What GPUs are used for cannot be changed", extra={"err": said})
            self._unwritten = said
            return False
        self._book, self._is_first, self._unwritten = changed, False, ""
        return True


def _read(path: Path) -> mode_checkpoint.Checkpoint | None:
    try:
        return mode_checkpoint.read(path)
    except mode_checkpoint.CheckpointError as error:
        logger.warning("Starting without what the last agent knew", extra={"err": str(error)})
        return None
