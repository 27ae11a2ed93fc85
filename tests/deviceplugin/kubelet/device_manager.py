"""The kubelet's device manager, as far as it can refuse a pod: `pkg/kubelet/cm/devicemanager/manager.go` of Kubernetes 1.36.

What it does at random (the order of a Go map) is done with the random numbers that it is given.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Container, Iterable

from deviceplugin.state.advertisement import AdvertisedDevice


class UnexpectedAdmissionError(Exception):
    """What the pod fails with, for good."""


class NilPointerError(Exception):
    """What the whole kubelet ends with."""


@dataclasses.dataclass(slots=True)
class DeviceManager:
    """Of one resource.

    held: by pod, what its checkpoint has, also of pods that are no more. running: pods that it need not ask about.
    listed: all devices of the last list.
    """

    chance: random.Random
    allocate: Callable[[list[str]], None]
    healthy: set[str] = dataclasses.field(default_factory=set)
    listed: set[str] = dataclasses.field(default_factory=set)
    held: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    running: set[str] = dataclasses.field(default_factory=set)

    def told(self, devices: Iterable[AdvertisedDevice]) -> None:
        """A list of ListAndWatch: it takes the place of the last one."""
        listed = list(devices)
        self.listed = {device.id for device in listed}
        self.healthy = {device.id for device in listed if device.healthy}

    def admit(self, pod: str, needed: int) -> None:
        """Add a pod; while `allocate` runs, another list may come.

        Raises UnexpectedAdmissionError, as `devicesToAllocate` and Allocate do, and NilPointerError.
        """
        if not needed:
            return
        already = self.held.get(pod, set())
        if not self.healthy:
            raise UnexpectedAdmissionError("no healthy devices present; cannot allocate unhealthy devices")
        if not already <= self.healthy:
            raise UnexpectedAdmissionError("previously allocated devices are no longer healthy")
        if already:
            return
        available = sorted(self.healthy.difference(*self.held.values()))
        if len(available) < needed:
            raise UnexpectedAdmissionError(f"requested number {needed} unavailable: {len(available)}")
        chosen = self.chance.sample(available, needed)
        self.allocate(chosen)
        if not self.listed.issuperset(chosen):
            raise NilPointerError(f"{sorted(set(chosen) - self.listed)}")
        self.held[pod] = set(chosen)

    def forget(self, pods: Container[str]) -> None:
        """Forget all but these, as `UpdateAllocatedDevices` does: with each pod that comes, but for the first ones."""
        self.held = {pod: held for pod, held in self.held.items() if pod in pods}
        self.running = {pod for pod in self.running if pod in pods}
