"""The critical events (XIDs) of all GPUs that an initialised NVML knows."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import pynvml

from deviceplugin.hardware import nvml_call, xid
from deviceplugin.hardware.nvml_call import NvmlError, ask


class Events:
    """The event set of one NVML. Not thread-safe. Close it before NVML shuts down.

    unwatched: GPUs whose failures would go unnoticed, by UUID, with the reason.
    """

    def __init__(self) -> None:
        self._set: Any = None
        self._uuids: dict[int, str | None] = {}  # by handle, because a lost GPU does not report its UUID
        self.unwatched: Mapping[str, str] = {}

    def close(self) -> None:
        """Stop receiving events; the next `wait` subscribes again."""
        if self._set is not None:
            ask(pynvml.nvmlEventSetFree, self._set, default=None, allowed=None)
            self._set = None

    def wait(self, timeout_seconds: float) -> xid.XidEvent | None:
        """Return the next critical event; None after `timeout_seconds` without one.

        The event's `gpu` is None if the GPU has not answered since NVML was initialised.
        """
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
        return xid.XidEvent(xid.XidKind.XID, int(event.eventData), gpu, *instances)

    def _subscribed(self) -> Any:
        events = ask(pynvml.nvmlEventSetCreate)
        self._uuids.clear()
        unwatched = {}
        for index in range(ask(pynvml.nvmlDeviceGetCount)):
            # Every snapshot reports a lost GPU.
            handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index, default=None, allowed=None)
            uuid = ask(pynvml.nvmlDeviceGetUUID, handle, default=None, allowed=None) if handle is not None else None
            if uuid is None:
                continue
            self._uuids[_address(handle)] = uuid
            problem = _register(handle, events)
            if problem:
                unwatched[uuid] = problem
        self.unwatched = unwatched
        return events


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _register(handle: Any, events: Any) -> str:
    """Register for a GPU's events; return why that is impossible, or ""."""
    try:
        supported = int(ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle))
    except NvmlError as error:
        return xid.watch_problem(events=nvml_call.error_name(error.code))
    try:
        ask(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError & supported, events)
    except NvmlError as error:
        return xid.watch_problem(registering=nvml_call.error_name(error.code))
    return ""
