"""Accounting: what part of its GPU each share is charged for.

A share takes from others the larger of its two parts: nobody can use the memory of a GPU whose compute is given away,
or the compute of one whose memory is. Neighbours that are unlike, much compute beside much memory, can add up to more
than their GPU that way; then each is charged less, in proportion. So a GPU never costs more than a GPU, and what is not
charged to anybody is idle.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping

from gpushare import fragmentation, ledger
from gpushare.allocation import ALL_STEPS, Allocation, GivenShare, peak
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import GpuNode
from gpushare.typical import TypicalOf


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


class PartState(enum.StrEnum):
    """What a part of a GPU is."""

    ALLOCATED = "allocated"  # given to shares
    HELD = "held"  # kept free for a pod that has waited too long
    FREE = "free"
    FRAGMENTED = "fragmented"  # free, in pieces too small for the typical request
    CORDONED = "cordoned"  # free, and nothing new may come
    UNHEALTHY = "unhealthy"  # free, and cannot be used
    OTHER_MODE = "other-mode"  # not for shares by annotation: given out by the kubelet, or to become something else


Parts = Mapping[tuple[str, PartState], float]  # by model of the GPU, in GPUs


def divide(node: GpuNode, typical_of: TypicalOf) -> Parts:
    """The parts of a node's GPUs; `typical_of`: the mix of requests on a GPU with so many bytes."""
    taken: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for charge in charges(node):
        taken[charge.gpu_uuid][charge.entry.is_hold] += charge.part
    used = ledger.use(node)
    parts: dict[tuple[str, PartState], float] = collections.defaultdict(float)
    for gpu in node.gpus:
        allocated, held = taken[gpu.uuid]
        rest = max(0.0, 1.0 - allocated - held)
        state = _unusable(gpu)
        stranded = 0.0
        if state is None and rest:
            free, useless = fragmentation.stranded(gpu, used[gpu.uuid], typical_of)
            stranded = rest * useless / free if free else rest
        for what, part in (
            (PartState.ALLOCATED, allocated),
            (PartState.HELD, held),
            (state or PartState.FREE, rest - stranded),
            (PartState.FRAGMENTED, stranded),
        ):
            if part > 0:
                parts[gpu.model, what] += part
    return dict(parts)


def _unusable(gpu: Gpu) -> PartState | None:
    """Why nothing new can come on the GPU, whatever is free on it."""
    if gpu.mode is not Mode.FRACTIONAL or gpu.pending_mode is not None:
        return PartState.OTHER_MODE
    if gpu.closed or not gpu.healthy:
        return PartState.UNHEALTHY
    return PartState.CORDONED if gpu.cordoned else None
