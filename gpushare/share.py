"""Share: the compute and memory requested of one GPU, before the GPU is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gpushare import quantity


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Requested device memory: a number of bytes, or a percentage of the GPU that is chosen."""

    bytes: int | None = None
    percent: int | None = None  # of the GPU's memory, 0 to 100; used if `bytes` is None

    def on(self, total_bytes: int) -> int:
        """Return the bytes on a GPU with `total_bytes`, rounded down so that parts never add up to more than the
        whole.
        """
        if self.bytes is not None:
            return self.bytes
        return total_bytes * (self.percent or 0) // 100

    def on_all(self, totals_bytes: Iterable[int]) -> int:
        """Return the bytes on each of several GPUs of one share; a percentage counts for the smallest GPU."""
        return min(map(self.on, totals_bytes))

    def __str__(self) -> str:
        return quantity.format_bytes(self.bytes) if self.bytes is not None else f"{self.percent}% of the memory"


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Compute and memory requested of one GPU.

    `request_percent` is guaranteed; `limit_percent` is the ceiling while other shares are idle; 0 to 100, and the
    request never exceeds the limit. Memory is a hard limit.
    """

    request_percent: int
    limit_percent: int
    memory: Memory

    def __str__(self) -> str:
        compute = f"{quantity.format_compute(self.request_percent)} GPU" if self.request_percent else "idle compute"
        return f"{compute} with {self.memory}"
