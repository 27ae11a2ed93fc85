"""Assignment: what one GPU is used for, and how. Two that are equal are the same to everyone."""

from __future__ import annotations

import dataclasses

from gpushare.config.model import Resources
from gpushare.gpu import Mode
from gpushare.modes.naming import NO_RULES
from gpushare.modes.sharing import SharedResource


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """What MIG shall make of a GPU: whether it is on, and how many devices of each profile, sorted by profile."""

    enabled: bool
    wanted: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        if not self.enabled:
            return "MIG off"
        return " + ".join(f"{count} × {name}" for name, count in self.wanted) or "no MIG devices"


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """What a GPU is used for.

    resource: under which it is advertised; "" for `fractional`, whose resources are gpushare's own, and for `mig`.
    replicas, alone, interval: of a GPU in `time-slicing` or `mps`, as in `SharedResource`.
    partition: what MIG has to be before this is true; None leaves it as it is.
    strategy, rules, shared: of a GPU in `mig`: what its MIG devices are called, and which of them are shared.
    """

    mode: Mode
    resource: str = ""
    replicas: int = 1
    alone: bool = False
    interval: str = ""
    partition: Partition | None = None
    strategy: str = ""
    rules: Resources = NO_RULES
    shared: tuple[SharedResource, ...] = ()

    def __str__(self) -> str:
        """In a few words: `time-slicing, 4 × nvidia.com/gpu.shared`."""
        words = [str(self.mode)]
        if self.resource:
            words.append(f"{self.replicas} × {self.resource}" if self.replicas > 1 else self.resource)
        if self.interval:
            words.append(f"{self.interval} time slices")
        if self.partition is not None:
            words.append(str(self.partition))
        words += [
            f"{resource.devices.of(resource.resource)} as {resource.replicas} × {resource.advertised} each"
            for resource in self.shared
        ]
        return ", ".join(words)
