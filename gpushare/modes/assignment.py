"""Assignment: the use of one GPU, with its parameters. Equal assignments need no change of the GPU."""

from __future__ import annotations

import dataclasses

from gpushare.config.model import Resources
from gpushare.gpu import Mode
from gpushare.modes.naming import NO_RULES
from gpushare.modes.sharing import SharedResource


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """The MIG state wanted of a GPU: whether it is enabled, and how many devices of each profile, sorted by profile."""

    enabled: bool
    wanted: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        if not self.enabled:
            return "MIG off"
        return " + ".join(f"{count} × {name}" for name, count in self.wanted) or "no MIG devices"


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """The use of one GPU.

    resource: the resource that advertises it; "" for `fractional`, whose resources are gpushare's own, and for `mig`.
    replicas, alone, interval: for `time-slicing` and `mps`, as in `SharedResource`. partition: the MIG state that this
    requires; None keeps the current one. strategy, rules, shared: for `mig`: the names of its MIG devices, and which of
    them are shared.
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
        """Return it in a few words: `time-slicing, 4 × nvidia.com/gpu.shared`."""
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
