"""Reads the GPUs continuously and publishes them: the only loop that watches the driver.

An event triggers a refresh within a moment. Changes without an event (a GPU that disappears silently or comes back, a
MIG device created by another program) are found by polling every few seconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.hardware import gpu_health, inventory, nvml, nvml_call, nvml_events, nvml_topology
from deviceplugin.hardware.gpu_health import FaultLog
from deviceplugin.hardware.nvml import Driver
from deviceplugin.state.node_state import MigDevice, Observable, ObservableGpus, Unreadable
from gpushare.gpunode import Gpu, GpuNode, MemoryEnforcement
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.01  # for an event: short and repeated, because other driver calls have to wait meanwhile
PAUSE_SECONDS: Final = 0.25
POLL_SECONDS: Final = 5.0
REINITIALIZE_SECONDS: Final = 60.0  # while a GPU does not answer or cannot be watched
SILENT_SECONDS: Final = 60.0  # no call takes this long, not even the first one after a boot or a MIG mode change


class Observation:
    """Keeps `seen` in sync with the driver: the present GPUs, independent of their use.

    unread: the GPUs that are missing from `seen` because nothing could be read. gpus: the driver's full description of
    the GPUs and their MIG devices. node: returns the GPUNode as last seen, or None. known: set once it has been read
    from the cluster. enforcement: returns what enforces memory limits on a GPU; runs in the driver's thread.
    cut_for_shares: whether a GPU with these MIG devices is in MIG mode only for shares that have them. changed: called
    when `gpus` or `faulty` change. proc, roots: the host's /proc; where /dev is.
    informed: set once a refresh has used the GPUNode. A GPU that was lost before our start is known only from there, so
    until then `seen` may lack it and must not overwrite the cluster's record.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        seen: ObservableGpus,
        unread: Observable[tuple[Unreadable, ...]],
        node: Callable[[], GpuNode | None],
        known: asyncio.Event,
        fault_log: FaultLog,
        enforcement: Callable[[str], MemoryEnforcement] = lambda _: MemoryEnforcement.LIBRARY,
        cut_for_shares: Callable[[str, tuple[MigDevice, ...]], bool] = lambda *_: False,
        changed: Callable[[], None] = lambda: None,
        ignored: nvml_events.Filter = nvml_events.Filter(),  # noqa: B008 - immutable
        proc: Path = Path("/proc"),
        roots: Sequence[Path] = (Path("/"),),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seen = seen
        self.unread = unread
        self.informed = asyncio.Event()
        self._driver = driver
        self._node = node
        self._known = known
        self._changed = changed
        self._fault_log = fault_log
        self._ignored = ignored
        self._clock = clock
        self._enforcement = enforcement
        self._cut_for_shares = cut_for_shares
        # XIDs that are ignored now may have been added because of these faults.
        self._faults: gpu_health.Faults = {
            uuid: fault for uuid, fault in fault_log.read().items() if not ignored.ignores(fault.number)
        }
        self._needing: Mapping[str, str] = {}  # why GPUs with a recovery action are unhealthy, by UUID
        self._silent: frozenset[str] = frozenset()  # UUIDs that did not answer at the last refresh
        self._refreshed_at = self._initialized_at = clock()
        self._kernel_directory = proc / "driver/nvidia/gpus"
        self._roots = roots
        self._plugged = self._kernel_gpus()
        self.gpus: inventory.DiscoveredGpus = {}
        self.minors: Mapping[str, int] = {}  # device minor numbers, by UUID
        self.paths: nvml_topology.Paths = {}  # between pairs of GPUs
        self._paths_known_for: frozenset[str] = frozenset()  # UUIDs at the time `paths` was read

    @property
    def hardware_gpus(self) -> tuple[HardwareGpu, ...]:
        """The GPUs by index. A GPU that is cut for shares counts as whole: it becomes so once it has none."""
        gpus = (
            dataclasses.replace(of.gpu, mig_enabled=False, mig_devices=(), cut_for_shares=of.gpu.mig_devices)
            if of.gpu.mig_enabled and self._cut_for_shares(of.gpu.uuid, of.devices)
            else of.gpu
            for of in self.gpus.values()
        )
        return tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid)))

    @property
    def parts(self) -> list[tuple[str, str, int, int]]:
        """The MIG devices as UUID, UUID of the GPU, and ids of GPU instance and compute instance."""
        return [
            (device.uuid, uuid, device.gpu_instance, device.compute_instance)
            for uuid, gpu in self.gpus.items()
            for device in gpu.devices
        ]

    @property
    def faulty(self) -> frozenset[str]:
        """The UUIDs of GPUs and MIG devices that have a fault."""
        return frozenset(self._faults)

    async def run(self) -> None:
        while True:
            await self.step()

    async def watch_for_silence(self, silent: Callable[[], None]) -> None:
        """Mark the GPUs unhealthy, and call `silent`, when a driver call takes too long: other loops may wait too."""
        was_silent = False
        while True:
            await asyncio.sleep(POLL_SECONDS)
            silent_seconds = self._driver.silent_seconds
            is_silent = silent_seconds >= SILENT_SECONDS
            if is_silent and not was_silent:  # before the first answer there is no GPU to mark
                logger.warning("The driver does not answer", extra={"seconds": round(silent_seconds)})
            was_silent = is_silent
            if is_silent:
                gpus = inventory.mark_silent(self.seen.gpus, seconds=SILENT_SECONDS)
                _log_changes(self.seen.gpus, gpus)
                self.seen.publish(gpus)
                silent()

    async def step(self) -> None:
        """Wait briefly for an event, and refresh if one came, if it is time, or if the GPUNode has become known."""
        unwatched, event = self._driver.nvml.unwatched, None
        if not self._ignored.checks_nothing:
            event = await self._driver.ask(self._driver.nvml.wait_for_xid, WAIT_SECONDS)
        if event is None:
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            self._record_event(event)
        is_time = self._clock() - self._refreshed_at >= POLL_SECONDS
        is_news = event is not None or self._driver.nvml.unwatched != unwatched
        if is_news or is_time or self._known.is_set() > self.informed.is_set():
            await self.refresh()

    async def refresh(self) -> None:
        is_known, node = self._known.is_set(), self._node()
        on_node, allocations = (node.gpus, node.allocations) if node is not None else ((), ())
        previous = tuple({gpu.uuid: gpu for gpu in (*on_node, *self.seen.gpus)}.values())
        before = (self.gpus, self.faulty)
        seen, actions = await self._driver.ask(self._read_driver, previous)
        self._refreshed_at = self._clock()
        answering = frozenset(gpu.uuid for gpu in seen.gpus)
        if actions is not None:
            needing = {uuid: action for uuid, action in actions.items() if action}
            faults = gpu_health.after_poll(
                self._faults,
                answering=answering,
                now=self._refreshed_at,
                recovered={uuid for uuid, action in actions.items() if action == ""},
                needing=needing,
            )
            self._set_faults(faults)
            self._needing = {uuid: f"the driver says that {action}" for uuid, action in needing.items()}
        self._silent = frozenset(gpu.uuid for gpu in previous) - answering
        held = {uuid for entry in allocations for uuid in entry.gpu_uuids}
        of_driver = {**self._driver.nvml.unwatched, **self._needing}
        reasons = {**of_driver, **{uuid: fault.reason for uuid, fault in self._faults.items()}}
        gpus = inventory.merge(previous, seen, faults=reasons, held=held)
        unread = inventory.unidentified(gpus, seen)
        self.gpus, self.minors = await self._driver.ask(self._describe, gpus)
        if self._paths_known_for != answering:  # fixed while the same GPUs answer
            self.paths = await self._driver.ask(nvml_topology.paths, [gpu.uuid for gpu in seen.gpus])
            self._paths_known_for = answering
        _log_changes(self.seen.gpus, gpus)
        if is_known:
            self.informed.set()
        if unread != self.unread.value:
            for gpu in unread:
                logger.warning("A GPU cannot be read", extra={"index": gpu.index, "err": str(gpu)})
        self.unread.publish(unread)
        self.seen.publish(gpus)
        if before != (self.gpus, self.faulty):
            self._changed()

    def _read_driver(self, previous: tuple[Gpu, ...]) -> tuple[nvml.NvmlSnapshot, Mapping[str, str | None] | None]:
        """Return the GPUs, and by UUID the recovery action of each; None instead if nothing is known about any GPU."""
        driver = self._driver.nvml
        try:
            is_time = self._clock() - self._initialized_at >= REINITIALIZE_SECONDS
            plugged = self._kernel_gpus()
            is_missing = self._silent or self.unread.value or driver.unwatched
            if plugged != self._plugged or (is_missing and is_time):
                self._initialized_at = self._clock()
                self._plugged = plugged
                driver.reinitialize()
            seen = driver.snapshot()
            able = (dataclasses.replace(gpu, memory_enforcement=self._enforcement(gpu.uuid)) for gpu in seen.gpus)
            seen = dataclasses.replace(seen, gpus=tuple(able))
            if plugged and not seen.gpus and not seen.unreadable:
                why = f"it lists none of the kernel's GPUs ({len(plugged)}): see the kernel's log for NVRM"
                seen = nvml.NvmlSnapshot((), (Unreadable(None, why),))
            elif unlisted := tuple(self._unlisted(plugged, seen)):
                seen = nvml.NvmlSnapshot(seen.gpus, (*seen.unreadable, *unlisted))
            return seen, {gpu.uuid: driver.recovery_action(gpu.uuid) for gpu in seen.gpus}
        except nvml_call.NvmlError as error:
            # If the driver does not answer at all, no GPU counts as healthy, and none counts as having disappeared:
            # only the driver may be at fault. A driver that is not loaded has released all GPUs, and starts them afresh
            # when it is loaded.
            indices: list[int | None] = [gpu.index for gpu in previous]
            unreadable = tuple(Unreadable(index, str(error)) for index in indices or [None])
            return nvml.NvmlSnapshot((), unreadable), {} if error.code == nvml.NOT_LOADED else None

    def _kernel_gpus(self) -> frozenset[str]:
        """Return the bus ids of the kernel module's GPUs, which NVML may not have noticed yet; empty if unknown."""
        try:
            return frozenset(path.name for path in self._kernel_directory.iterdir())
        except OSError:
            return frozenset()

    def _unlisted(self, plugged: Iterable[str], seen: nvml.NvmlSnapshot) -> Iterator[Unreadable]:
        """Yield the kernel's GPUs that the driver does not list, for example after a failed initialisation.

        If the node is itself a container, a GPU without a device node belongs to another node. An administrator may
        exclude GPUs.
        """
        listed = {nvml_call.kernel_address(gpu.pci_bus_id) for gpu in seen.gpus}
        for bus_id in sorted(set(plugged) - listed):
            if seen.unreadable and self._driver.nvml.lists(bus_id):
                continue
            try:
                text = (self._kernel_directory / bus_id / "information").read_text()
            except (OSError, UnicodeDecodeError):
                text = ""
            known = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
            minor = known.get("Device Minor", "")
            has_node = not minor or any((root / f"dev/nvidia{minor}").exists() for root in self._roots)
            if has_node and known.get("GPU Excluded") != "Yes":
                why = "the kernel has it, but the driver does not list it: see the kernel's log for NVRM"
                yield Unreadable(None, why, bus_id)

    def _describe(self, gpus: tuple[Gpu, ...]) -> tuple[inventory.DiscoveredGpus, Mapping[str, int]]:
        driver = self._driver.nvml
        minors = {gpu.uuid: driver.minor_number(gpu.uuid) for gpu in gpus}
        known = {uuid: number for uuid, number in minors.items() if number is not None}
        return inventory.discover(driver, gpus, self.gpus), {**self.minors, **known}

    def _record_event(self, event: nvml_events.XidEvent) -> None:
        logger.warning("The driver reported an XID", extra={"gpu": event.gpu, "xid": event.number})
        # A GPU that the driver cannot name did not answer before, so it is unhealthy already.
        if event.gpu is None:
            return
        # It is about a whole GPU or, if it names instances, about MIG devices.
        is_whole = event.gpu_instance == nvml_events.WHOLE_GPU
        gpus = {uuid: nvml_events.Watched(uuid) for uuid in (*self.gpus, event.gpu)}
        devices = {uuid: nvml_events.Watched(gpu, *ids) for uuid, gpu, *ids in self.parts}
        affected = nvml_events.affected(gpus if is_whole else devices, event, self._ignored)
        gpu, now = "" if is_whole else event.gpu, self._clock()
        self._set_faults(gpu_health.after_xid(self._faults, uuids=affected, number=event.number, now=now, gpu=gpu))

    def _set_faults(self, faults: gpu_health.Faults) -> None:
        if faults != self._faults:
            self._faults = faults
            self._fault_log.write(faults)


def _log_changes(before: tuple[Gpu, ...], after: tuple[Gpu, ...]) -> None:
    known = {gpu.uuid: gpu for gpu in before}
    for gpu in after:
        was = known.get(gpu.uuid)
        extra = {"gpu": gpu.uuid, "index": gpu.index, "model": gpu.model}
        if was is None:
            logger.info("Found a GPU", extra={**extra, "memory_bytes": gpu.memory_bytes})
            if not gpu.memory_bytes:
                why = "it takes no shares by annotation, and has no label for its memory"
                logger.warning("The driver does not report a GPU's memory", extra={**extra, "err": why})
        if not gpu.healthy and (was is None or was.health_reason != gpu.health_reason):
            logger.warning("A GPU is not healthy", extra={**extra, "err": gpu.health_reason})
        if gpu.healthy and was is not None and not was.healthy:
            logger.info("A GPU is healthy again", extra=extra)
    for uuid in known.keys() - {gpu.uuid for gpu in after}:
        logger.warning("A GPU has disappeared", extra={"gpu": uuid})
