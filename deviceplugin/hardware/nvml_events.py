"""The driver's critical events (XIDs): waits for them, and decides which devices they affect and which are ignored.

XIDs that programs cause are ignored (https://docs.nvidia.com/deploy/xid-errors/), unless two variables say otherwise.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import pynvml

from deviceplugin.hardware import nvml_call
from deviceplugin.hardware.nvml_call import NvmlError, ask, try_ask

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
DISABLE: Final = "DP_DISABLE_HEALTHCHECKS"
ENABLE: Final = "DP_ENABLE_HEALTHCHECKS"
NOT_SUPPORTED: Final = "ERROR_NOT_SUPPORTED"  # NVML's error for an old GPU without events
WHOLE_GPU: Final = 0xFFFFFFFF  # in place of an instance id: all instances


def parse_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a comma-separated list, sorted and unique; other items are ignored."""
    return tuple(sorted({int(item) for item in map(str.strip, text.split(",")) if re.fullmatch(r"[0-9]{1,9}", item)}))


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """The XIDs to ignore. all_disabled: ignore every XID that is not enabled by number. all_enabled: ignore none."""

    all_disabled: bool = False
    all_enabled: bool = False
    ignored: frozenset[int] = APPLICATION_XIDS
    enabled: frozenset[int] = frozenset()

    def ignores(self, number: int) -> bool:
        """Whether this XID says nothing about the GPU."""
        is_enabled = self.all_enabled or number in self.enabled
        return not is_enabled and (self.all_disabled or number in self.ignored)

    @property
    def checks_nothing(self) -> bool:
        """Whether every XID is ignored, so that waiting for events is unnecessary."""
        return self.all_disabled and not self.all_enabled and not self.enabled


def filter_from(environment: Mapping[str, str]) -> Filter:
    """Build the filter from the environment. An XID that is enabled by number is never ignored."""
    disabled, enabled = (
        {item.strip().lower() for item in environment.get(name, "").split(",")} for name in (DISABLE, ENABLE)
    )
    all_enabled = "all" in enabled
    return Filter(
        all_disabled=not all_enabled and not disabled.isdisjoint({"all", "xids"}),
        all_enabled=all_enabled,
        ignored=APPLICATION_XIDS | frozenset(parse_list(",".join(disabled))),
        enabled=frozenset(parse_list(",".join(enabled))),
    )


class XidKind(enum.StrEnum):
    """The kind of an event, or why there is none."""

    XID = "xid"
    DOUBLE_BIT_ECC = "double-bit-ecc"
    SINGLE_BIT_ECC = "single-bit-ecc"
    WAIT_ERROR = "wait-error"  # waiting for events failed, so nothing is known about any GPU
    TIMEOUT = "timeout"  # no event


@dataclasses.dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical event. gpu: UUID, None if the driver cannot identify it. The instances: WHOLE_GPU for all."""

    kind: XidKind
    number: int = 0
    gpu: str | None = None
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """A device as events identify it: its GPU, and a MIG device's instances."""

    gpu: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


def watch_problem(*, handle: str = "", events: str = "", registering: str = "") -> str:
    """Return why a device cannot be watched, so that it gets no work; "" if it can, or if its kind has no events.

    handle, events, registering: NVML's errors of finding the device, its events, and of registering for them.
    """
    if handle:
        return f"the driver does not find it: {handle}"
    if events:
        return f"the driver does not report which events it supports: {events}"
    if registering and registering != NOT_SUPPORTED:
        return f"the driver does not report its events: {registering}"
    return ""


def affected(devices: Mapping[str, Watched], event: XidEvent, ignored: Filter) -> tuple[str, ...]:
    """Return the ids of the devices that an event makes unhealthy, including every replica and MIG device."""
    if event.kind is XidKind.WAIT_ERROR:
        return tuple(devices)
    if event.kind is not XidKind.XID or ignored.ignores(event.number):
        return ()
    if event.gpu is None:
        return tuple(devices)

    def is_affected(device: Watched) -> bool:
        if device.gpu_instance is None or event.gpu_instance == WHOLE_GPU:
            return device.gpu == event.gpu
        same_part = event.compute_instance in (WHOLE_GPU, device.compute_instance)
        return (device.gpu, device.gpu_instance) == (event.gpu, event.gpu_instance) and same_part

    return tuple(identity for identity, device in devices.items() if is_affected(device))


class Events:
    """The event set of one NVML. Not thread-safe. Close it before NVML shuts down. unwatched: as in `nvml.Nvml`."""

    def __init__(self) -> None:
        self._set: Any = None
        self._uuids: dict[int, str | None] = {}  # by handle, because a lost GPU does not report its UUID
        self.unwatched: Mapping[str, str] = {}

    def close(self) -> None:
        """Stop receiving events; the next `wait` subscribes again."""
        if self._set is not None:
            try_ask(pynvml.nvmlEventSetFree, self._set)
            self._set = None

    def wait(self, timeout_seconds: float) -> XidEvent | None:
        """Return the next critical event; its `gpu` is None if the GPU has not answered since NVML was initialised."""
        end = time.monotonic() + timeout_seconds
        try:
            if self._set is None:
                self._set = self._subscribed()
            event = ask(pynvml.nvmlEventSetWait_v2, self._set, int(timeout_seconds * 1000))
        except NvmlError as error:
            # If a GPU is lost, the wait fails immediately and permanently. The snapshot reports the GPU.
            if error.code != pynvml.NVML_ERROR_TIMEOUT:
                time.sleep(max(0.0, end - time.monotonic()))
            return None
        gpu = self._uuids.get(_address(event.device))
        instances = int(event.gpuInstanceId), int(event.computeInstanceId)
        return XidEvent(XidKind.XID, int(event.eventData), gpu, *instances)

    def _subscribed(self) -> Any:
        events = ask(pynvml.nvmlEventSetCreate)
        self._uuids.clear()
        unwatched = {}
        for index in range(ask(pynvml.nvmlDeviceGetCount)):
            # Every snapshot reports a lost GPU.
            handle = try_ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = try_ask(pynvml.nvmlDeviceGetUUID, handle) if handle is not None else None
            if uuid is not None:
                self._uuids[_address(handle)] = uuid
                unwatched[uuid] = _register(handle, events)
        self.unwatched = {uuid: problem for uuid, problem in unwatched.items() if problem}
        return events


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _register(handle: Any, events: Any) -> str:
    """Register for a GPU's events; return why that is impossible, or ""."""
    try:
        supported = int(ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle))
    except NvmlError as error:
        return watch_problem(events=nvml_call.error_name(error.code))
    try:
        ask(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError & supported, events)
    except NvmlError as error:
        return watch_problem(registering=nvml_call.error_name(error.code))
    return ""
