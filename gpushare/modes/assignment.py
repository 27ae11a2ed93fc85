"""Assignment: what one GPU is used for, and how. Equal assignments have equal effects."""

from __future__ import annotations

import dataclasses

from gpushare.config.model import Resources
from gpushare.gpu import Mode
from gpushare.modes.naming import NO_RULES
from gpushare.modes.sharing import SharedResource


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """The MIG layout of a GPU: whether MIG is on, and how many devices of each profile, sorted by profile."""

    enabled: bool
    wanted: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        if not self.enabled:
            return "MIG off"
        return " + ".join(f"{count} × {name}" for name, count in self.wanted) or "no MIG devices"


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """What a GPU is used for.

    resource: its resource name; "" for `fractional`, whose resources are gpushare's own, and for `mig`. replicas,
    alone, interval: of a GPU in `time-slicing` or `mps`, as in `SharedResource`. partition: the MIG layout that it
    needs; None leaves MIG unchanged. strategy, rules, shared: of a GPU in `mig`: how its MIG devices are named, and
    which of them are shared.
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
        """Return a few words: `time-slicing, 4 × nvidia.com/gpu.shared`."""
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
