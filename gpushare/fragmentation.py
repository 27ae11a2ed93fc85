"""Fragmentation: the part of the free capacity that typical requests cannot use.

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent"
(USENIX ATC 2023): a GPU's free part counts as stranded for each class of request that does not fit it, weighted by the
frequency of that class. Extended here to two dimensions: a free part is the mean of free compute and free memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gpushare import typical
from gpushare.gpu import Gpu
from gpushare.ledger import GpuUse
from gpushare.typical import TypicalOf


@dataclasses.dataclass(frozen=True, slots=True)
class Fragmentation:
    """Free and stranded capacity in GPUs, and the largest single share that still fits on a GPU."""

    free_gpus: float
    stranded_gpus: float
    largest_percent: int
    largest_memory_bytes: int

    @property
    def ratio(self) -> float:
        """The stranded part of the free capacity, 0 to 1."""
        return self.stranded_gpus / self.free_gpus if self.free_gpus > 0 else 0.0


def free(gpu: Gpu, used: GpuUse) -> tuple[int, int]:
    """Return free compute (percent) and free memory (bytes); zeros for a GPU that takes no shares now."""
    if not gpu.takes_shares:
        return 0, 0
    return max(0, 100 - used.request_percent), max(0, gpu.memory_bytes - used.memory_bytes)


def largest(gpu: Gpu, used: GpuUse) -> tuple[int, int] | None:
    """Return compute (percent) and memory (bytes) of the largest share that a pod without labels would get, or None.

    Every share needs memory, and pods without the same exclusion label cannot join a GPU that has one.
    """
    percent, memory_bytes = free(gpu, used)
    return (percent, memory_bytes) if memory_bytes and not excludes(used) else None


def excludes(used: GpuUse) -> str:
    """Return the exclusion label that keeps other pods off a GPU, or an empty string."""
    return next((holder.labels.exclusion for holder in used.holders if holder.labels.exclusion), "")


def stranded(gpu: Gpu, used: GpuUse, typical_of: TypicalOf = typical.by_default) -> tuple[float, float]:
    """Return the free and the stranded part of one GPU, 0 to 1."""
    percent, memory_bytes = free(gpu, used)
    compute, memory = percent / 100, memory_bytes / gpu.memory_bytes if gpu.memory_bytes else 0.0
    part = (compute + memory) / 2
    if excludes(used):
        return part, part
    return part, typical.stranded(compute, memory, typical_of(gpu.memory_bytes))


def measure(gpus: Iterable[tuple[Gpu, GpuUse]], typical_of: TypicalOf = typical.by_default) -> Fragmentation:
    """Return the fragmentation of some GPUs: one GPU, a node or a cluster."""
    free_gpus = stranded_gpus = 0.0
    best = (0, 0)
    for gpu, used in gpus:
        part, useless = stranded(gpu, used, typical_of)
        free_gpus += part
        stranded_gpus += useless
        best = max(best, largest(gpu, used) or (0, 0))
    return Fragmentation(free_gpus, stranded_gpus, *best)
