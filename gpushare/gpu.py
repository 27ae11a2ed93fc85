"""Gpu: one GPU, or one MIG device, as its node's agent reports it."""

from __future__ import annotations

import dataclasses
import enum
import operator
from typing import Final


class Mode(enum.StrEnum):
    """The use of a GPU; only `FRACTIONAL` ones take shares by annotation."""

    FRACTIONAL = "fractional"
    EXCLUSIVE = "exclusive"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """The properties of a GPU, without allocations."""

    uuid: str
    index: int
    model: str
    memory_bytes: int  # 0 if the driver does not report it
    compute_capability: tuple[int, int] = (0, 0)
    numa_node: int | None = None
    link_group: int | None = None  # GPUs with the same number are joined by NVLink; None: no link, or unknown
    pci_bus_id: str = ""
    mode: Mode = Mode.FRACTIONAL
    pending_mode: Mode | None = None  # the next mode, set up once the GPU is unused; no new pods until then
    mig_profiles: tuple[str, ...] = ()  # of its MIG devices, by index, such as 1g.10gb
    healthy: bool = True
    health_reason: str = ""  # why it is unhealthy, as a sentence
    cordoned: bool = False  # closed to new pods by an admin, or for a change of mode
    closed: str = ""  # why its node takes no new pods, as a clause; empty if it does

    @property
    def takes_shares(self) -> bool:
        """Whether the ledger may place shares on it now."""
        return self.mode is Mode.FRACTIONAL and self.healthy and not self.cordoned and not self.closed

    def anonymous(self) -> Gpu:
        """Return the GPU without its identity; equal for GPUs with equal `FACTS`."""
        return dataclasses.replace(self, uuid="", index=0, pci_bus_id="", health_reason="")


_OWN = frozenset({"uuid", "index", "pci_bus_id", "health_reason"})
# The properties of a GPU that others may have, too, as a tuple.
FACTS: Final = operator.attrgetter(*(field.name for field in dataclasses.fields(Gpu) if field.name not in _OWN))
