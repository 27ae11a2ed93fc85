"""Brings the GPUs to the modes that the cluster wants, one GPU at a time, and never one that is in use.

`desired_config` and `transition` decide. This loop orders the effects: a change is written to disk before it is made on
the GPU, and published after it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.agent_settings import ModeOptions
from deviceplugin.cluster_objects import Configuration
from deviceplugin.hardware import observation
from deviceplugin.modes import desired_config, mode_checkpoint, setup, transition
from deviceplugin.modes.desired_config import ConfiguredGpu
from deviceplugin.modes.gpu_users import GpuUsers
from deviceplugin.state import node_state
from deviceplugin.state.advertisement import DelayedDecrease
from deviceplugin.state.gpunode_copy import GpuNodeCopy, NodeEvents
from gpushare import contract
from gpushare.cluster import api_errors, retrying
from gpushare.config import config_choice
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import GpuNode, Mode
from gpushare.modes.assignment import Assignment, contradiction, is_permanent, offer
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)

# The pause after a step: while a GPU waits for its users, while no change is pending, and after a failure.
PENDING_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 60.0
FAILED_SECONDS: Final = 30.0


class ModeReconciler:
    """The loop. `wake` starts the next step. It publishes everything in `state` that the observation does not.

    settled: writes the state published so far, and returns the GPUNode as stored after it. Raises ClusterError.
    mps_problem: returns why the GPU with a UUID cannot be shared by MPS now, or ""; path: the checkpoint's file.
    with_isolations: returns a GPU with the isolations that its shares may have now, as far as it and the node can, and
    with its SM partitions, if so many are configured for shares with the isolation mps. owner_of: returns who has the
    GPU with a UUID, on a node whose GPUs another device plugin gives.
    """

    def __init__(
        self,
        configuration: Configuration,
        gpunode: GpuNodeCopy,
        settled: Callable[[], Awaitable[GpuNode]],
        events: NodeEvents,
        observed: observation.Observation,
        state: node_state.NodeState,
        *,
        wake: asyncio.Event,
        gpu_users: GpuUsers,
        mode_setup: setup.ModeSetup,
        path: Path,
        options: ModeOptions,
        allocatable: DelayedDecrease,
        mps_problem: Callable[[str], str],
        with_isolations: Callable[[HardwareGpu, int], HardwareGpu],
        owner_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._configuration = configuration
        self._gpunode = gpunode
        self._settled = settled
        self._events = events
        self._observed = observed
        self._state = state
        self._gpu_users = gpu_users
        self._setup = mode_setup
        self._allocatable = allocatable
        self._mps_problem = mps_problem
        self._path = path
        self._wake = wake
        self._with_isolations = with_isolations
        self._owner_of = owner_of
        self._selector = desired_config.ConfigSelector(
            configuration, options, lambda problem: events.record(contract.EVENT_CONFIG_INVALID, problem, warning=True)
        )
        known = None
        try:
            known = mode_checkpoint.read(path)
        except mode_checkpoint.CheckpointError as error:
            logger.warning("Starting without the previous agent's record of GPU modes", extra={"err": str(error)})
        self._is_first = known is None
        self._checkpoint = known or mode_checkpoint.Checkpoint(config_choice.BUILT_IN)
        self._closed: frozenset[str] = frozenset()
        self._backed_off = False  # whether this step skipped a GPU whose setup failed a moment ago
        self._write_problem = ""  # why the checkpoint cannot be written; empty if it can
        self._blocked: dict[str, str] = {}  # by UUID, why a GPU cannot be changed now although it is unused
        self._repair = setup.DriftRepair(events, observed, gpu_users, mode_setup)
        self._last_waiting: Mapping[str, tuple[str, ...]] = {}
        self._settings = NodeSettings()

    async def run(self) -> None:
        self._observed.seen.wake(self._wake)
        self._state.owners.wake(self._wake)
        await self._gpu_users.refresh()  # the first list must contain every counter that is in use
        while True:
            self._wake.clear()
            pause_seconds = await self.step()
            await retrying.wait(self._wake, pause_seconds)

    async def step(self) -> float:
        """Make the changes that are possible now; return the longest pause before the next step, in seconds."""
        if self._is_first and not self._configuration.is_known:
            return IDLE_SECONDS  # pods admitted on a guess would keep their GPU from its configured mode
        if not await self._select_config() and self._is_first:
            if self._selector.desired is None:
                self._publish({})  # announce that no mode is in force
            return FAILED_SECONDS if self._write_problem else IDLE_SECONDS
        self._blocked = {}
        self._backed_off = False
        await self._initialize(self._wanted)
        while True:  # close, find users, change: at most three rounds, as no new difference can appear in between
            closed_before = self._closed
            users = await self._users(closed_before) if closed_before else {}
            drifted = self._repair.drifted(self._in_force)
            plan = transition.plan(
                self._checkpoint.gpus, self._wanted, closed=closed_before, users=users, drifted=drifted.keys()
            )
            self._closed = plan.closed
            self._setup.forget_failures_except(plan.closed)
            self._repair.release_except(plan.closed)
            self._publish(plan.waiting)
            for uuid in sorted(plan.repair):
                assignment = self._in_force[uuid]
                if assignment is None:
                    continue
                if self._borrows:  # the GPU is not ours to change
                    self._repair.check(uuid, assignment)
                elif await self._repair.repair(uuid, assignment):
                    self._closed -= {uuid}
            if plan.repair:
                self._publish(plan.waiting)
            if plan.change:
                await self._change(plan.change, plan.waiting)
                self._publish(plan.waiting)
            if plan.closed <= closed_before:
                break
        if self._backed_off:
            pause_seconds = setup.BACKOFF_SECONDS
        elif self._setup.failed or self._write_problem:
            pause_seconds = FAILED_SECONDS
        else:
            pause_seconds = PENDING_SECONDS if self._closed else IDLE_SECONDS
        return min(pause_seconds, self._allocatable.decrease_in_seconds)

    async def _select_config(self) -> bool:
        """Select the configuration and record it; return whether a valid one is in force."""
        current = None if self._is_first else self._checkpoint.current
        gpus = []
        for gpu in self._observed.hardware_gpus:
            last = self._checkpoint.last(gpu.uuid)
            gpus.append(dataclasses.replace(gpu, ours=last is not None and last.partition is not None))
        known = desired_config.with_missing(gpus, self._checkpoint.known_gpus)
        unread = desired_config.unread_gpus(known, [gpu.index for gpu in self._observed.unread.value])
        foreign = await self._foreign() if self._borrows else ""
        desired = await self._selector.select(current, (*gpus, *unread), (*known, *unread), foreign=foreign)
        if desired is None:
            return False
        self._settings = desired.settings
        is_same = not self._is_first and self._checkpoint.current == desired.config
        known_gpus = (
            self._checkpoint.known_gpus
            if is_same and desired_config.missing(gpus, self._checkpoint.known_gpus)
            else tuple(ConfiguredGpu(gpu.uuid, gpu.index, gpu.model, gpu.mig_capable) for gpu in gpus)
        )
        if not is_same or tuple(self._checkpoint.known_gpus) != tuple(known_gpus):
            await self._write(dataclasses.replace(self._checkpoint, current=desired.config, known_gpus=known_gpus))
        return not self._is_first

    @property
    def _wanted(self) -> Mapping[str, Assignment]:
        desired = self._selector.desired.assignments if self._selector.desired is not None else {}
        return {uuid: assignment for uuid, assignment in desired.items() if not uuid.startswith(desired_config.UNREAD)}

    @property
    def _in_force(self) -> Mapping[str, Assignment | None]:
        """The assignments in force, with the isolations configured now, which need no change of the GPU."""
        wanted = self._wanted
        return {
            uuid: dataclasses.replace(now, isolations=wanted[uuid].isolations) if now and uuid in wanted else now
            for uuid, now in self._checkpoint.gpus.items()
        }

    async def _initialize(self, wanted: Mapping[str, Assignment]) -> None:
        """Give new GPUs an initial assignment, and set up GPUs that this process has not set up yet."""
        node = self._gpunode.now()
        allocations = node.allocations if node is not None else ()
        healthy = {gpu.uuid for gpu in self._observed.seen.gpus if gpu.healthy}
        for gpu in self._observed.hardware_gpus:
            if gpu.uuid not in self._checkpoint.gpus and gpu.uuid in wanted:
                initial = desired_config.initial_assignment(gpu, wanted[gpu.uuid], allocations)
                if not await self._write(self._checkpoint.assign(gpu.uuid, initial)):
                    continue
            if gpu.uuid not in healthy:
                self._setup.forget(gpu.uuid)  # the GPU has to be reset before it is healthy again
                continue
            assignment = self._in_force.get(gpu.uuid)
            if assignment is None or gpu.uuid in self._setup.ready or contradiction(gpu, assignment):
                continue
            if self._borrows:
                self._setup.ready.add(gpu.uuid)
            elif not self._backs_off(gpu.uuid, assignment):
                await self._setup.set_up(gpu, assignment)

    @property
    def _borrows(self) -> bool:
        return not self._is_first and self._checkpoint.current == config_choice.BORROWED

    async def _foreign(self) -> str:
        """Return why GPUs that were borrowed may still be another device plugin's; empty if no container has one."""
        if problem := await self._gpu_users.refresh():
            return f"it is unknown whether containers have GPUs of another device plugin: {problem}"
        if given := self._gpu_users.in_use():
            return f"another device plugin has given {', '.join(sorted(given))} to containers; delete their pods"
        return ""

    def _backs_off(self, uuid: str, assignment: Assignment) -> bool:
        in_backoff = self._setup.in_backoff(uuid, assignment)
        self._backed_off |= in_backoff
        return in_backoff

    async def _users(self, closed: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """Return the users of closed GPUs, by UUID. Call it only after their closing was published."""
        unknown: dict[str, str] = {}
        node, in_force = None, self._checkpoint.gpus
        shared = [uuid for uuid in closed if (now := in_force.get(uuid)) is None or now.mode is Mode.FRACTIONAL]
        if shared:
            try:
                node = await self._settled()
            except api_errors.ClusterError as error:
                unknown = dict.fromkeys(shared, f"the ledger cannot be read: {error}")
        allocations = node.allocations if node is not None else ()
        gpus = [gpu for gpu in self._observed.hardware_gpus if gpu.uuid in closed]
        return await self._gpu_users.users(gpus, allocations=allocations, unknown=unknown)

    async def _change(self, change: Mapping[str, Assignment], waiting: Mapping[str, tuple[str, ...]]) -> None:
        gpus = {gpu.uuid: gpu for gpu in self._observed.hardware_gpus}
        healthy = {gpu.uuid for gpu in self._observed.seen.gpus if gpu.healthy}
        for uuid, assignment in change.items():
            if uuid not in gpus or uuid not in healthy:
                self._blocked[uuid] = "the GPU is unhealthy; its mode changes once it is healthy"
                continue
            if is_permanent(gpus[uuid], assignment):
                self._repair.check(uuid, assignment)
                continue
            if self._backs_off(uuid, assignment):
                continue
            before = self._checkpoint.last(uuid)
            if not await self._write(self._checkpoint.assign(uuid, None)):
                self._blocked[uuid] = self._write_problem
                continue
            self._publish(waiting)
            vacated = await self._setup.tear_down(gpus[uuid], before, assignment)
            is_set_up = vacated and await self._setup.set_up(gpus[uuid], assignment)
            usable = is_set_up and self._repair.check(uuid, assignment)
            if usable and await self._write(self._checkpoint.assign(uuid, assignment)):
                self._closed -= {uuid}
                extra = {"gpu": uuid, "was": str(before), "is": str(assignment)}
                logger.info("Changed the mode of a GPU", extra=extra)
        if not self._closed and not self._selector.problem:
            name = self._checkpoint.current.name or "without a name"
            self._events.record(contract.EVENT_CONFIG_APPLIED, f"configuration {name} is in force on every GPU")

    def republish(self) -> None:
        """Publish newly observed GPUs, even while a step waits for a driver that hangs."""
        if self._state.published.is_set():
            self._publish(self._last_waiting)

    def _publish(self, waiting: Mapping[str, tuple[str, ...]]) -> None:
        self._last_waiting = waiting
        in_force, hardware, failed = self._checkpoint.gpus, self._observed.hardware_gpus, self._setup.failed
        # A GPU whose setup failed is not offered, even if the checkpoint says it is in force.
        ready = {uuid: assignment for uuid, assignment in in_force.items() if uuid not in failed}
        partitions = {uuid: wanted.sm_partitions for uuid, wanted in self._wanted.items()}
        able = [self._with_isolations(gpu, partitions.get(gpu.uuid, 0)) for gpu in hardware]
        gpus = transition.gpus_with_modes(self._observed.seen.gpus, in_force, self._wanted, self._closed, able)
        if self._borrows:
            gpus = tuple(dataclasses.replace(gpu, owner=self._owner_of(gpu.uuid)) for gpu in gpus)
        offered = offer(hardware, {uuid: assignment for uuid, assignment in ready.items() if assignment})
        shared = [device for ids in offered.values() for device in ids if device.mode is Mode.MPS]
        without_daemon = {device.device for device in shared if self._mps_problem(device.gpu)}
        self._state.in_force.publish(
            node_state.ModesInForce(offered, self._settings, self._closed, in_force, self._borrows)
        )
        self._state.gpus.publish(gpus)
        self._state.allocatable.publish(self._allocatable(gpus))
        self._state.advertised.publish(
            transition.advertised(
                gpus,
                hardware,
                ready,
                closed=self._closed,
                in_use=self._gpu_users.allocated_ids,
                unhealthy=self._observed.faulty | without_daemon,
                usable=self._state.allocatable.value,
            )
        )
        gone = desired_config.missing(hardware, self._checkpoint.known_gpus)
        absent = (f"GPU {gpu.index} ({gpu.uuid}) is gone: the configuration still counts it" for gpu in gone)
        chosen = self._selector.desired.warnings if self._selector.desired is not None else ()
        self._state.config_status.publish(
            transition.config_status(
                config=None if self._is_first else self._checkpoint.current,
                problem=self._selector.problem,
                warnings=(
                    *chosen,
                    *absent,
                    *transition.without_partitions(hardware, self._wanted),
                    *filter(None, (self._write_problem,)),
                ),
                gpus=gpus,
                wanted=self._wanted,
                waiting={uuid: users for uuid, users in waiting.items() if uuid in self._closed},
                failed={**self._repair.quarantined, **failed, **self._blocked},
                changing=self._closed | failed.keys(),
            )
        )
        self._state.published.set()

    async def _write(self, changed: mode_checkpoint.Checkpoint) -> bool:
        """Write the checkpoint before it takes effect; return whether that worked. If not, nothing changes.

        It runs in a thread, so a slow disk does not delay answers to the kubelet. Closed GPUs stay closed. A cancelled
        call waits for the thread too, as what it writes takes effect.
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
            problem = f"{self._path} cannot be written: {error.strerror or error}; the GPUs keep their modes"
            if problem != self._write_problem:
                logger.warning("The modes of the GPUs cannot be changed", extra={"err": problem})
            self._write_problem = problem
            return False
        self._checkpoint = changed
        self._is_first = False
        self._write_problem = ""
        return True
