"""Looks at the GPUs, all the time, and publishes what there is: the one loop that watches the driver.

An event wakes it within a moment; everything that has none (a GPU lost without a word, one that came back, a MIG
device that somebody made) is found by looking every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.hardware import discovery, gpu_health, inventory, nvml, nvml_call, nvml_topology, xid
from deviceplugin.hardware.driver import Driver
from deviceplugin.hardware.gpu_health import FaultLog
from deviceplugin.state.offer import Observable, Offer, Unreadable
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)

# An event is waited for only so long, and then again: whoever else has a question of the driver waits meanwhile.
WAIT_SECONDS: Final = 0.01
PAUSE_SECONDS: Final = 0.25
POLL_SECONDS: Final = 5.0
REINITIALIZE_SECONDS: Final = 60.0  # while a GPU does not answer, or cannot be watched
# No call takes so long: neither the first after a boot, nor one that cuts a GPU into MIG devices.
SILENT_SECONDS: Final = 60.0
_APPLICATION_XIDS: Final = xid.Filter()
_KERNEL_GPUS: Final = Path("driver/nvidia/gpus")  # below /proc


class Observation:
    """Keeps `seen` true to the driver: the GPUs as they are, whatever they are used for.

    unread: the GPUs of which nothing could be read, so that they are not in `seen`.
    node: the GPUNode as last seen, or None while there is none.
    known: set once `node` is what the cluster says.
    changed: called when `gpus` or `ill` are not what they were.
    proc: where the kernel tells which GPUs are plugged in. roots: where /dev is, this container's own and the host's.
    informed: set once a look could compare with it. A GPU that was lost before our start is known from there alone, so
        until then what is seen may be short of it, and must not be written over what the cluster remembers.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        seen: Offer,
        unread: Observable[tuple[Unreadable, ...]],
        node: Callable[[], GpuNode | None],
        known: asyncio.Event,
        fault_log: FaultLog,
        changed: Callable[[], None] = lambda: None,
        ignored: xid.Filter = _APPLICATION_XIDS,
        proc: Path = Path("/proc"),
        roots: Sequence[Path] = (Path("/"),),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self.seen = seen
        self.unread = unread
        self._node = node
        self._known = known
        self._fault_log = fault_log
        self._changed = changed
        self._ignored = ignored
        self.informed = asyncio.Event()
        self._clock = clock
        # What is to be ignored now may be what the last agent was stopped for.
        self._faults: gpu_health.Faults = {
            uuid: fault for uuid, fault in fault_log.read().items() if not ignored.ignores(fault.number)
        }
        self._needing: gpu_health.Faults = {}  # what the driver wants to be recovered
        self._silent: frozenset[str] = frozenset()  # UUIDs that did not answer the last time
        self._refreshed_at = self._initialized_at = clock()
        self._kernel_directory, self._roots = proc / _KERNEL_GPUS, roots
        self._plugged = self._kernel_gpus()
        self._discovered = discovery.NONE
        self.minors: Mapping[str, int] = {}  # the number of each GPU's device node
        self.paths: nvml_topology.Paths = {}  # between GPUs
        self._paths_known_for: frozenset[str] = frozenset()  # the UUIDs of those whose `paths` are known

    @property
    def hardware_gpus(self) -> tuple[HardwareGpu, ...]:
        """The GPUs with their MIG devices, by index."""
        return tuple(sorted((gpu.gpu for gpu in self._discovered.values()), key=lambda gpu: (gpu.index, gpu.uuid)))

    @property
    def gpus(self) -> discovery.DiscoveredGpus:
        """The same with all that the driver says of the MIG devices."""
        return self._discovered

    @property
    def parts(self) -> list[tuple[str, str, int, int]]:
        """The MIG devices, as UUID, UUID of the GPU, and the numbers of the two instances."""
        return [
            (device.uuid, uuid, device.gpu_instance, device.compute_instance)
            for uuid, gpu in self._discovered.items()
            for device in gpu.devices
        ]

    @property
    def _unwatched(self) -> gpu_health.Faults:
        return {uuid: gpu_health.Fault(reason, None) for uuid, reason in self._driver.nvml.unwatched.items()}

    @property
    def faulty(self) -> frozenset[str]:
        """UUIDs of what has a fault of its own, GPUs and MIG devices."""
        return frozenset(self._faults)

    async def run(self) -> None:
        """Look at the GPUs until cancelled."""
        while True:
            await self.step()

    async def watch_for_silence(self, silent: Callable[[], None]) -> None:
        """Publish that the driver does not answer, once a question has waited too long; until cancelled.

        silent: called then, as whoever tells others of the GPUs may be waiting for the driver, too.
        """
        was_silent = False
        while True:
            await asyncio.sleep(POLL_SECONDS)
            silent_seconds = self._driver.silent_seconds
            is_silent = silent_seconds >= SILENT_SECONDS
            if is_silent and not was_silent:  # before the first answer there is no GPU to say it of
                logger.warning("The driver does not answer", extra={"seconds": round(silent_seconds)})
            was_silent = is_silent
            if is_silent:
                gpus = inventory.mark_silent(self.seen.gpus, seconds=SILENT_SECONDS)
                _log_changes(self.seen.gpus, gpus)
                self.seen.publish(gpus)
                silent()

    async def step(self) -> None:
        """Wait a little for an event, and look if there was one, or it is time, or there is news to compare with."""
        unwatched = self._driver.nvml.unwatched
        event = await self._event()
        if event is not None:
            self._record_event(event)
        is_time = self._clock() - self._refreshed_at >= POLL_SECONDS
        is_news = event is not None or self._driver.nvml.unwatched != unwatched
        if is_news or is_time or self._known.is_set() > self.informed.is_set():
            await self.refresh()

    async def _event(self) -> xid.XidEvent | None:
        event = None
        if not self._ignored.checks_nothing:
            event = await self._driver.ask(self._driver.nvml.wait_for_xid, WAIT_SECONDS)
        if event is None:
            await asyncio.sleep(PAUSE_SECONDS)
        return event

    async def refresh(self) -> None:
        """Ask the driver for everything and publish it."""
        is_known, node = self._known.is_set(), self._node()
        known = {gpu.uuid: gpu for gpu in (*(node.gpus if node is not None else ()), *self.seen.gpus)}
        previous = tuple(known.values())
        before = (self._discovered, self.faulty)
        seen, actions = await self._driver.ask(self._read_driver, previous)
        self._refreshed_at = self._clock()
        answering = frozenset(gpu.uuid for gpu in seen.gpus)
        if actions is not None:
            recovered = {uuid for uuid, action in actions.items() if action == ""}
            needing = {uuid for uuid, action in actions.items() if action}
            self._set_faults(
                gpu_health.after_poll(
                    self._faults, answering=answering, now=self._refreshed_at, recovered=recovered, needing=needing
                )
            )
            self._needing = {uuid: gpu_health.Fault(f"the driver says that {actions[uuid]}", None) for uuid in needing}
        self._silent = frozenset(gpu.uuid for gpu in previous) - answering
        held = {uuid for entry in (node.allocations if node is not None else ()) for uuid in entry.gpu_uuids}
        gpus = inventory.merge(previous, seen, faults={**self._unwatched, **self._needing, **self._faults}, held=held)
        unread = inventory.unidentified(gpus, seen)
        self._discovered, self.minors = await self._driver.ask(self._describe, gpus)
        if self._paths_known_for != answering:  # they do not change while the same GPUs are there
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
        if before != (self._discovered, self.faulty):
            self._changed()

    def _read_driver(self, previous: tuple[Gpu, ...]) -> tuple[nvml.NvmlSnapshot, Mapping[str, str | None] | None]:
        """The GPUs, and by UUID what has to be done to each; None where nothing is known of any GPU."""
        driver = self._driver.nvml
        try:
            is_time = self._clock() - self._initialized_at >= REINITIALIZE_SECONDS
            plugged = self._kernel_gpus()
            is_missing = self._silent or self.unread.value or driver.unwatched
            if plugged != self._plugged or (is_missing and is_time):
                self._initialized_at, self._plugged = self._clock(), plugged
                driver.reinitialize()
            seen = driver.snapshot()
            if plugged and not seen.gpus and not seen.unreadable:
                why = f"it lists none of the kernel's GPUs ({len(plugged)}): see the kernel's log for NVRM"
                seen = nvml.NvmlSnapshot((), (Unreadable(None, why),))
            elif unlisted := tuple(self._unlisted(plugged, seen)):
                seen = nvml.NvmlSnapshot(seen.gpus, (*seen.unreadable, *unlisted))
            return seen, {gpu.uuid: driver.recovery_action(gpu.uuid) for gpu in seen.gpus}
        except nvml_call.NvmlError as error:
            # A driver that does not answer at all vouches for no GPU, and tells of none that it was away: it may be the
            # driver alone that is. One that is not loaded has let go of all, and starts each again when it is loaded.
            unreadable = tuple(Unreadable(gpu.index, str(error)) for gpu in previous)
            unreadable = unreadable or (Unreadable(None, str(error)),)
            return nvml.NvmlSnapshot((), unreadable), {} if error.code == nvml.NOT_LOADED else None

    def _kernel_gpus(self) -> frozenset[str]:
        """The GPUs that the kernel's module has, by bus id; none where that does not tell. NVML sees no new ones."""
        try:
            return frozenset(path.name for path in self._kernel_directory.iterdir())
        except OSError:
            return frozenset()

    def _unlisted(self, plugged: Iterable[str], seen: nvml.NvmlSnapshot) -> Iterator[Unreadable]:
        """The kernel's GPUs that the driver does not list, as where their initialisation failed.

        In a node that is a container, a GPU without a device node is another's. An administrator may exclude GPUs.
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

    def _describe(self, gpus: tuple[Gpu, ...]) -> tuple[discovery.DiscoveredGpus, Mapping[str, int]]:
        driver = self._driver.nvml
        minors = {gpu.uuid: driver.minor_number(gpu.uuid) for gpu in gpus}
        known = {uuid: number for uuid, number in minors.items() if number is not None}
        return discovery.read(driver, gpus, self._discovered), {**self.minors, **known}

    def _record_event(self, event: xid.XidEvent) -> None:
        logger.warning("The driver reported an XID", extra={"gpu": event.gpu, "xid": event.number})
        # One that the driver cannot name did not answer before either, and is unhealthy for that already.
        if event.gpu is None:
            return
        affected = xid.affected(self._watched(event), event, self._ignored)
        gpu = "" if event.gpu_instance == xid.WHOLE_GPU else event.gpu
        after = gpu_health.after_xid(self._faults, uuids=affected, number=event.number, now=self._clock(), gpu=gpu)
        self._set_faults(after)

    def _watched(self, event: xid.XidEvent) -> dict[str, xid.Watched]:
        """What an event can be about: each GPU as a whole, or, where it names instances, its MIG devices."""
        if event.gpu_instance == xid.WHOLE_GPU:
            return {uuid: xid.Watched(uuid) for uuid in (*self._discovered, str(event.gpu))}
        return {
            device.uuid: xid.Watched(uuid, device.gpu_instance, device.compute_instance)
            for uuid, gpu in self._discovered.items()
            for device in gpu.devices
        }

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
