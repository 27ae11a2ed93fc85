"""Accounting: what part of its GPU each share is charged for.

A share takes from others the larger of its two parts: nobody can use the memory of a GPU whose compute is given away,
or the compute of one whose memory is. Neighbours that are unlike, much compute beside much memory, can add up to more
than their GPU that way; then each is charged less, in proportion. So a GPU never costs more than a GPU, and what is not
charged to anybody is idle.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator

from gpushare.allocation import ALL_STEPS, Allocation, GivenShare, peak
from gpushare.gpunode import GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class ShareOnGpu:
    """A share on one GPU; `part` of it, 0 to 1."""

    entry: Allocation
    share: GivenShare
    gpu_uuid: str
    part: float


def charges(node: GpuNode) -> Iterator[ShareOnGpu]:
    """The charge of each share, and of what is held for a gated pod, on each of its GPUs that is there."""
    gpus = node.gpu_by_uuid()
    by_gpu: dict[str, list[ShareOnGpu]] = collections.defaultdict(list)
    for entry in node.allocations:
        for share in entry.shares:
            for uuid in share.gpu_uuids:
                if uuid in gpus:
                    part = larger_part(share, gpus[uuid].memory_bytes) * _in_turn(entry, uuid)
                    by_gpu[uuid].append(ShareOnGpu(entry, share, uuid, part))
    for on_gpu in by_gpu.values():
        total = max(1.0, sum(share_on_gpu.part for share_on_gpu in on_gpu))
        yield from (dataclasses.replace(share_on_gpu, part=share_on_gpu.part / total) for share_on_gpu in on_gpu)


def larger_part(share: GivenShare, gpu_bytes: int) -> float:
    """The larger of its compute and its memory, as a part of a GPU with `card_bytes`."""
    return min(1.0, max(share.request_percent / 100, share.memory_bytes / gpu_bytes if gpu_bytes else 0.0))


def _in_turn(entry: Allocation, uuid: str) -> float:
    """The fraction of its shares' summed amounts that a pod holds at its peak; 1 if all are in use at once."""
    if all(share.steps == ALL_STEPS for share in entry.shares):
        return 1.0
    there = [share for share in entry.shares if uuid in share.gpu_uuids]
    amounts: tuple[Callable[[GivenShare], int], ...] = (
        lambda share: share.request_percent,
        lambda share: share.memory_bytes,
    )
    totals = [(peak(there, amount), sum(map(amount, there))) for amount in amounts]
    return max((held / total for held, total in totals if total), default=1.0)
