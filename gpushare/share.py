"""Share: what is asked of one GPU, before it is known which GPU that will be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gpushare import quantity


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Device memory asked for: a number of bytes, or a part of whatever GPU it turns out to be."""

    bytes: int | None = None
    percent: int | None = None  # of the GPU's memory, 0 to 100; used when `bytes` is None

    def on(self, total_bytes: int) -> int:
        """Bytes on a GPU with `total_bytes`; rounded down, so that parts never add up to more than the whole."""
        if self.bytes is not None:
            return self.bytes
        return total_bytes * (self.percent or 0) // 100

    def on_all(self, totals_bytes: Iterable[int]) -> int:
        """Bytes on each of several GPUs, which are one share with one amount: a part is that of the smallest."""
        return min(map(self.on, totals_bytes))

    def __str__(self) -> str:
        return quantity.format_bytes(self.bytes) if self.bytes is not None else f"{self.percent}% of the memory"


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Compute and memory asked of one GPU.

    `request_percent` is guaranteed, `limit_percent` the ceiling while others leave compute idle; both 0 to 100, the
    request no more than the limit. Memory is hard.
    """

    request_percent: int
    limit_percent: int
    memory: Memory

    def __str__(self) -> str:
        compute = f"{quantity.format_compute(self.request_percent)} GPU" if self.request_percent else "idle compute"
        return f"{compute} with {self.memory}"
