"""XID events: which devices they affect, and which XIDs are ignored. Pure.

XIDs that programs cause are ignored: https://docs.nvidia.com/deploy/xid-errors/. Two environment variables of NVIDIA's
plugin change the list.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Final

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
DISABLE: Final = "DP_DISABLE_HEALTHCHECKS"
ENABLE: Final = "DP_ENABLE_HEALTHCHECKS"
NOT_SUPPORTED: Final = "ERROR_NOT_SUPPORTED"  # NVML's error for an old GPU without events
WHOLE_GPU: Final = 0xFFFFFFFF  # in place of an instance id: all instances

_EVERYTHING: Final = frozenset({"all", "xids"})


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """The XIDs to ignore. all_disabled: ignore every XID that is not enabled by number. all_enabled: ignore none."""

    all_disabled: bool = False
    all_enabled: bool = False
    ignored: frozenset[int] = APPLICATION_XIDS
    enabled: frozenset[int] = frozenset()

    def ignores(self, number: int) -> bool:
        """Whether this XID says nothing about the GPU."""
        if self.all_enabled or number in self.enabled:
            return False
        return self.all_disabled or number in self.ignored

    @property
    def checks_nothing(self) -> bool:
        """Whether every XID is ignored, so that waiting for events is unnecessary."""
        return self.all_disabled and not self.all_enabled and not self.enabled


def parse_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a comma-separated list, sorted and unique; other items are ignored."""
    return tuple(sorted({int(item) for item in map(str.strip, text.split(",")) if re.fullmatch(r"[0-9]{1,9}", item)}))


def filter_from(environment: Mapping[str, str]) -> Filter:
    """Build the filter from the environment. An XID that is enabled by number is never ignored."""
    disabled = _words(environment.get(DISABLE, ""))
    enabled = _words(environment.get(ENABLE, ""))
    all_enabled = "all" in enabled
    return Filter(
        all_disabled=bool(disabled & _EVERYTHING) and not all_enabled,
        all_enabled=all_enabled,
        ignored=APPLICATION_XIDS | frozenset(parse_list(",".join(disabled))),
        enabled=frozenset(parse_list(",".join(enabled))),
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(item.strip().lower() for item in text.split(","))


class XidKind(enum.StrEnum):
    """The kind of an event, or why there is none."""

    XID = "xid"
    DOUBLE_BIT_ECC = "double-bit-ecc"
    SINGLE_BIT_ECC = "single-bit-ecc"
    WAIT_ERROR = "wait-error"  # waiting for events failed, so nothing is known about any GPU
    TIMEOUT = "timeout"  # no event


@dataclasses.dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical event of the driver.

    gpu: UUID; None if the driver could not identify the GPU. gpu_instance, compute_instance: WHOLE_GPU for all of them.
    """

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
    """Return why a device cannot be watched; "" if it can, or if its kind has no events.

    A device whose failures would go unnoticed gets no work. handle, events, registering: NVML's errors of finding the
    device, of asking for its events, and of registering for them.
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
    return tuple(identity for identity, device in devices.items() if _is_about(event, device))


def _is_about(event: XidEvent, device: Watched) -> bool:
    if device.gpu != event.gpu:
        return False
    if device.gpu_instance is None or event.gpu_instance == WHOLE_GPU:
        return True
    return device.gpu_instance == event.gpu_instance and event.compute_instance in (WHOLE_GPU, device.compute_instance)
