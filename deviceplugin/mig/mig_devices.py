"""Cuts MIG devices for shares with the isolation mig, and makes idle GPUs whole again.

The ledger decides, so an agent that restarts finds the same devices wanted. A GPU is compared with the ledger as soon
as that changes, so a device usually exists before the kubelet starts its container. A container starts only once its
device reads back. A share of another kind waits until the GPU is whole; without one, the GPU stays cut for a while, in
case more such shares come.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.hardware import nvml_call, nvml_mig
from deviceplugin.hardware.nvml import Driver
from deviceplugin.hardware.partitioner import Create, CreatePart, Destroy, DestroyPart, Partitioner, SetMode, Step
from deviceplugin.host import records
from deviceplugin.mig import cut_plan
from deviceplugin.mig.cut_plan import CutDevice
from deviceplugin.state.node_state import MigDevice, MigMode
from gpushare.allocation import MigInstance
from gpushare.gpunode import Gpu, GpuNode
from gpushare.modes.hardware_gpu import HardwareGpu
from gpushare.pod import PodJson
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

NAME: Final = "mig-devices.json"
VERSION: Final = 1
SECONDS: Final = 2.0  # between two comparisons with the ledger, if it has not changed
IDLE_SECONDS: Final = 60.0  # that a GPU stays cut without shares
READY_SECONDS: Final = 20.0  # that a starting container waits; the kubelet allows 30
POLL_SECONDS: Final = 0.25
TRIES: Final = 60  # attempts within READY_SECONDS
STARTING_SECONDS: Final = 60.0  # in which the ledger's copy shows the share of a container that starts
RESET_SECONDS: Final = 600.0  # before a GPU that needed a reset is tried again, or one that failed is offered again
REPORT_SECONDS: Final = 5.0  # that a problem lasts before it is reported
MAX_ROUNDS: Final = 6  # MIG mode, old devices, new devices, and as many for changes by other programs
_REMEDY: Final = "give the agent config/components/mig"


class MigShares:
    """The MIG devices of shares. Only GPUs in mode fractional are touched.

    path: of the record. node: the GPUNode as last seen; None while it or the pods are unknown, or if there is none.
    pods: those of this node. fractional: the UUIDs of the GPUs in that mode now. changed: called after MIG devices, or
    what a GPU offers, have changed. warn: sends an Event with this note.
    """

    def __init__(
        self,
        driver: Driver,
        mig: nvml_mig.MigDriver,
        *,
        path: Path,
        node: Callable[[], GpuNode | None],
        pods: Callable[[], Iterable[PodJson]],
        fractional: Callable[[], frozenset[str]],
        changed: Callable[[], Awaitable[None]],
        warn: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._mig = mig
        self._partitions = Partitioner(mig)
        self._path = path
        self._node = node
        self._pods = pods
        self._fractional = fractional
        self._changed = changed
        self._warn = warn
        self._clock = clock
        self._record = _read(path)
        self._locks = collections.defaultdict[str, asyncio.Lock](asyncio.Lock)  # by UUID of the GPU
        self._starting: dict[tuple[str, MigInstance], float] = {}  # when a container asked for its device
        self._idle_since: dict[str, float] = {}
        # By UUID, and by whether MIG mode was to be turned on: why that needs a reset, and when it was tried.
        self._resets: dict[tuple[str, bool], tuple[str, float]] = {}
        self._failed_at: dict[str, float] = {}  # by UUID: when the driver refused a step
        self._pending_off: set[str] = set()  # GPUs in MIG mode that lose it at their next reset
        self._problems: dict[str, tuple[str, float]] = {}  # by UUID, with the time since when
        self._reported: dict[str, str] = {}
        self.wake = asyncio.Event()

    async def run(self) -> None:
        while True:
            self.wake.clear()
            await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SECONDS):
                    await self.wake.wait()

    async def step(self) -> None:
        """Bring every GPU to what the ledger has placed on it, as far as that is possible now."""
        node = self._node()
        if node is None:
            return
        cut = {uuid for entry in node.allocations for share in entry.shares if share.mig for uuid in share.gpu_uuids}
        for uuid in sorted((cut | self._record.keys()) & self._fractional()):
            await self._reconcile(uuid)

    async def device(self, uuid: str, device: MigInstance) -> str | Refusal:
        """Return the UUID of this MIG device, cut if it did not exist, or why there is none in time."""
        self._starting[uuid, device] = self._clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                for _ in range(TRIES):
                    is_read = await self._reconcile(uuid)
                    for cut in self._record.get(uuid, ()) if is_read else ():
                        if cut.uuid and (cut.profile, cut.start) == (device.profile, device.start):
                            return cut.uuid
                    if self._needs_reset(uuid, enabled=True):
                        break
                    await asyncio.sleep(POLL_SECONDS)
        why = self._problem(uuid) or "its mode is changing, or the driver did not answer in time"
        return Refusal(f"the MIG device {device} of GPU {uuid} cannot be created: {why}")

    async def whole(self, uuids: Sequence[str]) -> Refusal | None:
        """Wait until these GPUs are whole, for a share of another kind; return why one is not in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                for _ in range(TRIES):
                    for uuid in self.cut.intersection(uuids):
                        await self._reconcile(uuid, is_needed_whole=True)
                    if self.cut.isdisjoint(uuids):
                        return None
                    await asyncio.sleep(POLL_SECONDS)
        still_cut = next((uuid for uuid in uuids if uuid in self.cut), None)
        if still_cut is None:
            return None
        why = self._problem(still_cut) or "MIG devices of ended pods are still on it"
        return Refusal(f"GPU {still_cut} is still in MIG mode: {why}")

    async def merge(self, uuid: str) -> str:
        """Make a GPU whole before it changes its mode, while no pod uses it; return why that failed, or ""."""
        for _ in range(MAX_ROUNDS):
            if uuid not in self._record:
                return ""
            await self._reconcile(uuid, is_needed_whole=True, is_leaving=True)
        return self._problem(uuid) or "it is still in MIG mode"

    def can_share(self, gpu: HardwareGpu) -> bool:
        """Whether shares with this isolation can come to the GPU, as far as the GPU is concerned."""
        is_known = gpu.mig_capable and not gpu.mig_enabled and gpu.geometry is not None
        failed = self._clock() < self._failed_at.get(gpu.uuid, -RESET_SECONDS) + RESET_SECONDS
        return is_known and not failed and not self._needs_reset(gpu.uuid, enabled=True)

    def is_stuck(self, uuid: str) -> bool:
        """Whether the GPU becomes whole only by a reset, so that only shares with this isolation can use it."""
        return uuid in self._pending_off and uuid in self._record

    def are_only_ours(self, uuid: str, devices: tuple[MigDevice, ...]) -> bool:
        """Whether a GPU is in MIG mode because of shares only: it counts as whole, as it can become that again."""
        cuts = self._record.get(uuid)
        places = {(cut.profile, cut.start) for cut in cuts or ()}
        return cuts is not None and all((str(each.profile.gpu_instance), each.start) in places for each in devices)

    def as_devices(self, node: GpuNode) -> GpuNode:
        """Return the node as its processes see it: see `cut_plan.as_devices`."""
        return cut_plan.as_devices(node, self._record)

    @property
    def cut(self) -> frozenset[str]:
        """The UUIDs of the GPUs that are in MIG mode for shares, or about to be."""
        return frozenset(self._record)

    @property
    def parents(self) -> dict[str, str]:
        """The GPU of each MIG device, both by UUID."""
        return {cut.uuid: uuid for uuid, cuts in self._record.items() for cut in cuts if cut.uuid}

    def gpus(self, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
        """Return the GPUs with the MIG devices in place of those that are cut for shares."""
        return tuple(device for gpu in gpus for device in cut_plan.as_gpus(gpu, self._record))

    async def _reconcile(self, uuid: str, *, is_needed_whole: bool = False, is_leaving: bool = False) -> bool:
        """Change the GPU as far as that is possible now; return whether the record is what the driver last reported."""
        async with self._locks[uuid]:
            if not is_leaving and uuid not in self._fractional():
                return False
            problem, is_read = "", True
            for _ in range(MAX_ROUNDS):
                try:
                    is_done, problem = await self._round(uuid, is_needed_whole=is_needed_whole)
                except (nvml_call.NvmlError, OSError) as error:
                    is_done, is_read, problem = True, False, _sentence(error)
                if is_done:
                    break
            self._report(uuid, problem)
            return is_read

    async def _round(self, uuid: str, *, is_needed_whole: bool) -> tuple[bool, str]:
        """Make the next changes; return whether nothing more can be done now, and why not all is done."""
        node = self._node()
        if node is None:
            return True, "the GPUNode is unknown"
        wanted = self._wanted(node, uuid)
        if uuid not in self._record and not wanted:
            return True, ""
        if uuid not in self._record and (why := self._needs_reset(uuid, enabled=True)):
            return True, why
        held = cut_plan.held(self._pods(), uuid)
        is_idle = self._has_been_idle(uuid, bool(wanted or held))
        may_merge = is_needed_whole or is_idle or cut_plan.has_others(node, uuid)
        stuck = self._needs_reset(uuid, enabled=False) if may_merge and not wanted else ""
        present = await self._driver.ask(self._partitions.read, uuid)
        before = self._record.get(uuid), self.is_stuck(uuid)
        proposed = cut_plan.make_plan(present, wanted, before[0], may_merge=may_merge and not stuck, held=held)
        await self._write(
            uuid, proposed.record if proposed.record is None else cut_plan.proven(present, proposed.record)
        )
        self._note_pending(uuid, present.mode)
        if not proposed.steps:
            if before != (self._record.get(uuid), self.is_stuck(uuid)):
                await self._changed()
            return True, proposed.waits or stuck
        logger.info("Cutting a GPU for shares", extra={"gpu": uuid, "steps": [str(step) for step in proposed.steps]})
        try:
            waits = await self._driver.ask(self._execute, uuid, proposed.steps)
        except nvml_call.NvmlError as error:
            if error.code != nvml_mig.IN_USE:  # a process that came in between is no failure
                self._failed_at[uuid] = self._clock()
            await self._changed()
            raise
        self._failed_at.pop(uuid, None)
        await self._changed()
        for step in proposed.steps:
            if isinstance(step, SetMode) and waits:
                return True, await self._reset_needed(uuid, waits, enabled=step.enabled)
            if isinstance(step, SetMode):
                self._resets = {key: known for key, known in self._resets.items() if key[0] != uuid}
        return False, proposed.waits

    def _wanted(self, node: GpuNode, uuid: str) -> tuple[MigInstance, ...]:
        """Return the devices that the ledger has on a GPU, and those of starting containers, which it may not show."""
        now, placed = self._clock(), cut_plan.wanted(node, uuid)
        self._starting = {
            (gpu, device): at
            for (gpu, device), at in self._starting.items()
            if now < at + STARTING_SECONDS and not (gpu == uuid and device in placed)
        }
        if cut_plan.has_others(node, uuid):
            return placed
        starting = (device for gpu, device in self._starting if gpu == uuid)
        taken = {place for device in placed for place in device.places}
        return (*placed, *(device for device in starting if taken.isdisjoint(device.places)))

    def _has_been_idle(self, uuid: str, is_wanted: bool) -> bool:
        if is_wanted:
            self._idle_since.pop(uuid, None)
            return False
        return self._clock() >= self._idle_since.setdefault(uuid, self._clock()) + IDLE_SECONDS

    def _execute(self, uuid: str, steps: tuple[Step, ...]) -> str:
        """Execute the steps in the driver's thread; return why a change of the MIG mode waits for a reset, or ""."""
        for step in steps:
            match step:
                case SetMode(enabled):
                    waits = self._mig.set_mig_mode(uuid, enabled=enabled)
                    if waits and enabled:  # do not leave a change behind that the next reset would make
                        self._mig.set_mig_mode(uuid, enabled=False)
                    return waits
                case DestroyPart(instance_id, part_id):
                    self._mig.destroy_compute_instance(uuid, instance_id, part_id)
                case Destroy(instance_id):
                    self._mig.destroy_gpu_instance(uuid, instance_id)
                case CreatePart(instance_id, slices):
                    self._mig.create_compute_instance(uuid, instance_id, slices)
                case Create(kind, start, (slices,)):
                    made = self._mig.create_gpu_instance(uuid, kind, start)
                    self._mig.create_compute_instance(uuid, made, slices)
        return ""

    async def _reset_needed(self, uuid: str, waits: str, *, enabled: bool) -> str:
        why = (
            f"its MIG mode cannot be turned on ({waits}): stop the programs that have it open, such as a monitoring "
            f"agent; the agent tries again in {RESET_SECONDS / 60:.0f} minutes"
            if enabled
            else f"its MIG mode can be turned off only by a reset ({waits}): run `nvidia-smi --gpu-reset -i {uuid}` "
            "while it is unused"
        )
        self._resets[uuid, enabled] = why, self._clock()
        if enabled:
            await self._write(uuid, None)
        else:
            self._pending_off.add(uuid)
        await self._changed()  # the GPU now takes shares of fewer kinds
        return why

    def _needs_reset(self, uuid: str, *, enabled: bool) -> str:
        """Return why MIG mode could not be turned on, or off, a while ago; "" if it could, or may be tried again."""
        why, at = self._resets.get((uuid, enabled), ("", 0.0))
        return why if self._clock() < at + RESET_SECONDS else ""

    def _note_pending(self, uuid: str, mode: MigMode | None) -> None:
        if mode is not None and mode.current and not mode.pending:
            self._pending_off.add(uuid)
        else:
            self._pending_off.discard(uuid)

    async def _write(self, uuid: str, cuts: tuple[CutDevice, ...] | None) -> None:
        """Change the record of a GPU, on disk first. Raises OSError."""
        if self._record.get(uuid) == cuts:
            return
        record = {gpu: known for gpu, known in self._record.items() if gpu != uuid}
        record |= {} if cuts is None else {uuid: cuts}
        document = {"version": VERSION, "gpus": {gpu: records.to_json(known) for gpu, known in sorted(record.items())}}
        await asyncio.to_thread(records.write_file, self._path, json.dumps(document, indent=1), lasting=True)
        self._record = record

    def _problem(self, uuid: str) -> str:
        return self._problems.get(uuid, ("", 0.0))[0]

    def _report(self, uuid: str, problem: str) -> None:
        """Remember the problem of a GPU, and report it once if it persists: most pass with a process that ends."""
        known, since = self._problems.get(uuid, ("", 0.0))
        if not problem:
            self._problems.pop(uuid, None)
            self._reported.pop(uuid, None)
        elif problem != known:
            self._problems[uuid] = problem, self._clock()
        elif self._clock() >= since + REPORT_SECONDS and self._reported.get(uuid) != problem:
            self._reported[uuid] = problem
            logger.warning("A GPU is not as its shares need it", extra={"gpu": uuid, "err": problem})
            self._warn(f"GPU {uuid} cannot be partitioned as its shares need it: {problem}")


def _sentence(error: nvml_call.NvmlError | OSError) -> str:
    denied = isinstance(error, nvml_call.NvmlError) and error.code == nvml_mig.NO_PERMISSION
    return f"{error}: {_REMEDY}" if denied else str(error)


def _read(path: Path) -> dict[str, tuple[CutDevice, ...]]:
    """Return the record; an invalid one is set aside, after which no device that exists is ever destroyed."""
    try:
        document = records.load(path)
        records.check(document["version"] == VERSION, f"unsupported version {document['version']}")
        return records.read(dict[str, tuple[CutDevice, ...]], document["gpus"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("Starting without the record of MIG devices for shares", extra={"err": str(error)})
        records.set_aside(path)
        return {}
