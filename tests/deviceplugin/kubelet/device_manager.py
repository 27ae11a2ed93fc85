"""The part of the kubelet's device manager that can refuse a pod: `pkg/kubelet/cm/devicemanager/manager.go` of
Kubernetes 1.36.

Random choices (the order of a Go map) come from the given random numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Container, Iterable

from deviceplugin.state.advertisement import AdvertisedDevice


class UnexpectedAdmissionError(Exception):
    """The pod fails permanently."""


class NilPointerError(Exception):
    """The kubelet crashes."""


@dataclasses.dataclass(slots=True)
class DeviceManager:
    """The device manager of one resource.

    held: the checkpoint, by pod, including ended pods. running: pods that keep their devices without a new allocation.
    listed: all devices of the last list.
    """

    chance: random.Random
    allocate: Callable[[list[str]], None]
    healthy: set[str] = dataclasses.field(default_factory=set)
    listed: set[str] = dataclasses.field(default_factory=set)
    held: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    running: set[str] = dataclasses.field(default_factory=set)

    def receive(self, devices: Iterable[AdvertisedDevice]) -> None:
        """Replace the list of devices, as ListAndWatch does."""
        listed = list(devices)
        self.listed = {device.id for device in listed}
        self.healthy = {device.id for device in listed if device.healthy}

    def admit(self, pod: str, needed: int) -> None:
        """Admit a pod; another list may arrive while `allocate` runs.

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
        """Forget all other pods, as `UpdateAllocatedDevices` does with each new pod except for the first ones."""
        self.held = {pod: held for pod, held in self.held.items() if pod in pods}
        self.running = {pod for pod in self.running if pod in pods}
