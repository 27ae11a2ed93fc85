"""Accounting: the part of a GPU that each share is charged for, and a division of all GPUs by use.

A share is charged for the larger of its compute and memory: with either one used up, other pods cannot use the rest.
Unlike neighbours, one with much compute and one with much memory, can add up to more than their GPU; then both are
charged less, in proportion. So a GPU never costs more than one GPU, and the uncharged rest is idle.

The division assigns every part of a GPU a state, so the parts add up to the number of GPUs. Free capacity that typical
requests cannot use is fragmented.
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
    """A share on one GPU, charged for `part` of it, 0 to 1."""

    entry: Allocation
    share: GivenShare
    gpu_uuid: str
    part: float


def charges(node: GpuNode) -> Iterator[ShareOnGpu]:
    """Yield the charge of each share and backfill reservation on each of the node's GPUs."""
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
    """Return the larger of a share's compute and memory, as a part of a GPU with `gpu_bytes`."""
    return min(1.0, max(share.request_percent / 100, share.memory_bytes / gpu_bytes if gpu_bytes else 0.0))


def _in_turn(entry: Allocation, uuid: str) -> float:
    """Return the pod's peak as a fraction of its shares' sum; 1 if all are in use at once."""
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
    """The state of a part of a GPU."""

    ALLOCATED = "allocated"  # held by shares
    HELD = "held"  # held by a backfill reservation
    FREE = "free"
    FRAGMENTED = "fragmented"  # free, in pieces too small for the typical request
    CORDONED = "cordoned"  # free, but closed to new pods by an admin
    UNHEALTHY = "unhealthy"  # free, but the GPU or its node cannot run pods
    OTHER_MODE = "other-mode"  # not fractional (the kubelet hands it out), or changing its mode


Parts = Mapping[tuple[str, PartState], float]  # in GPUs, by GPU model


def divide(node: GpuNode, typical_of: TypicalOf) -> Parts:
    """Divide a node's GPUs; `typical_of`: the mix of requests by the GPU's bytes."""
    taken: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for charge in charges(node):
        taken[charge.gpu_uuid][charge.entry.is_backfill_reservation] += charge.part
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
    """Return the state of free capacity that no new pod can use, or None."""
    if gpu.mode is not Mode.FRACTIONAL or gpu.pending_mode is not None:
        return PartState.OTHER_MODE
    if gpu.closed or not gpu.healthy:
        return PartState.UNHEALTHY
    return PartState.CORDONED if gpu.cordoned else None
