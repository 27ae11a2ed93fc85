"""A device leaves the kubelet's list in two steps: first it is not healthy, and only after a while it is gone.

The kubelet chooses devices, calls Allocate, and looks them up in its list after that. One that a newer list lacks is a
nil pointer to Kubernetes 1.36 (`allocateContainerResources` in `pkg/kubelet/cm/devicemanager/manager.go`): the kubelet
ends. What is not healthy it chooses no more, so after a while none of it is on its way.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from deviceplugin.state.advertisement import AdvertisedDevice

SECONDS: Final = 30.0  # for a list to be heard, and for an Allocate, which is answered from memory, to end


class Withdrawal:
    """Of the devices of one resource. clock: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listed: Mapping[str, AdvertisedDevice] = {}
        self._left_at: Mapping[str, float] = {}  # by id of a device that is listed, and advertised no more

    def listed(self, advertised: Iterable[AdvertisedDevice]) -> tuple[AdvertisedDevice, ...]:
        """What the kubelet is to be told while these are advertised: these, and those that leave."""
        now = self._clock()
        wanted = {device.id: device for device in advertised}
        left_at = {identity: self._left_at.get(identity, now) for identity in self._listed.keys() - wanted.keys()}
        leaving = {
            identity: dataclasses.replace(device, healthy=False)
            for identity, device in self._listed.items()
            if identity in left_at and now - left_at[identity] < SECONDS
        }
        self._left_at = {identity: left_at[identity] for identity in leaving}
        self._listed = wanted | leaving
        return tuple(self._listed.values())

    def due_seconds(self) -> float | None:
        """In how many seconds the next device may be gone; None if none leaves."""
        first = min(self._left_at.values(), default=None)
        return None if first is None else max(0.0, first + SECONDS - self._clock())
