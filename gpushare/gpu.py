"""Gpu: one card, or one MIG device, as its node's agent reports it."""

from __future__ import annotations

import dataclasses
import enum
import operator
from typing import Final


class Mode(enum.StrEnum):
    """What a GPU is used for; only `FRACTIONAL` ones take shares by annotation."""

    FRACTIONAL = "fractional"
    EXCLUSIVE = "exclusive"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """What there is; never what is allocated on it."""

    uuid: str
    index: int
    model: str
    memory_bytes: int  # 0 where the driver does not tell
    compute_capability: tuple[int, int] = (0, 0)
    numa_node: int | None = None
    link_group: int | None = None  # the same number: joined by NVLink; None: joined to none, or not known
    pci_bus_id: str = ""
    mode: Mode = Mode.FRACTIONAL
    pending_mode: Mode | None = None  # what it becomes once nobody uses it; until then nothing new comes on it
    mig_profiles: tuple[str, ...] = ()  # of the MIG devices on it, by their index, such as 1g.10gb
    healthy: bool = True
    health_reason: str = ""  # why it is not healthy, as a sentence
    cordoned: bool = False  # an admin wants nothing new on it, or another mode
    closed: str = ""  # why its node takes nothing new, as a clause; empty if it does

    @property
    def takes_shares(self) -> bool:
        """Whether the ledger may give anything of it now."""
        return self.mode is Mode.FRACTIONAL and self.healthy and not self.cordoned and not self.closed

    def anonymous(self) -> Gpu:
        """The same without what tells it from others with equal `FACTS`."""
        return dataclasses.replace(self, uuid="", index=0, pci_bus_id="", health_reason="")


_OWN = frozenset({"uuid", "index", "pci_bus_id", "health_reason"})
# Of a GPU all that may be the same for many, as a tuple.
FACTS: Final = operator.attrgetter(*(field.name for field in dataclasses.fields(Gpu) if field.name not in _OWN))
