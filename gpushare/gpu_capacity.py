"""The capacity of GPUs: what each share is charged for, what is free, and what of that typical requests cannot use.

A GPU's free part counts as stranded for each class of request that does not fit it, weighted by its frequency: Weng et
al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023).
A share is charged for the larger of its compute and memory, because other pods cannot use the rest; charges that add up
to more than their GPU shrink in proportion.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from gpushare import ledger, policies
from gpushare.allocation import ALL_STEPS, Allocation, GivenShare, Isolation
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.ledger import GpuUse
from gpushare.policies import TypicalOf

Kinds = Collection[Isolation]  # of isolation, that pods which name none may get
ARBITER: Final[Kinds] = frozenset({Isolation.ARBITER})


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


def largest(gpu: Gpu, used: GpuUse, kinds: Kinds = ARBITER) -> tuple[int, int] | None:
    """Return compute (percent) and memory (bytes) of the largest share that a pod without labels would get, or None."""
    percent, memory_bytes = free(gpu, used)  # every share needs memory
    return (percent, memory_bytes) if memory_bytes and is_open(gpu, used, kinds) else None


def is_open(gpu: Gpu, used: GpuUse, kinds: Kinds = ARBITER) -> bool:
    """Whether pods without an exclusion label, of one of these kinds of isolation, may join those on the GPU."""
    if excludes(used) or any(holder.labels.isolation not in kinds for holder in used.holders):
        return False
    return bool(used.holders) or any(kind in kinds for kind in gpu.isolations)


def excludes(used: GpuUse) -> str:
    """Return the exclusion label that keeps other pods off a GPU, or an empty string."""
    return next((holder.labels.exclusion for holder in used.holders if holder.labels.exclusion), "")


def stranded(
    gpu: Gpu, used: GpuUse, typical_of: TypicalOf = policies.default_mix, kinds: Kinds = ARBITER
) -> tuple[float, float]:
    """Return the free and the stranded part of one GPU, 0 to 1."""
    percent, memory_bytes = free(gpu, used)
    compute, memory = percent / 100, memory_bytes / gpu.memory_bytes if gpu.memory_bytes else 0.0
    part = (compute + memory) / 2
    if not is_open(gpu, used, kinds):
        return part, part
    return part, policies.stranded_part(compute, memory, typical_of(gpu.memory_bytes))


def fragmentation(
    gpus: Iterable[tuple[Gpu, GpuUse]], typical_of: TypicalOf = policies.default_mix, kinds: Kinds = ARBITER
) -> Fragmentation:
    """Return the fragmentation of some GPUs: one GPU, a node or a cluster."""
    free_gpus = stranded_gpus = 0.0
    best = (0, 0)
    for gpu, used in gpus:
        part, useless = stranded(gpu, used, typical_of, kinds)
        free_gpus += part
        stranded_gpus += useless
        best = max(best, largest(gpu, used, kinds) or (0, 0))
    return Fragmentation(free_gpus, stranded_gpus, *best)


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
                    gpu_bytes = gpus[uuid].memory_bytes
                    memory = share.held_bytes / gpu_bytes if gpu_bytes else 0.0
                    part = min(1.0, max(share.held_percent / 100, memory)) * _in_turn(entry, uuid)
                    by_gpu[uuid].append(ShareOnGpu(entry, share, uuid, part))
    for on_gpu in by_gpu.values():
        total = max(1.0, sum(share_on_gpu.part for share_on_gpu in on_gpu))
        yield from (dataclasses.replace(share_on_gpu, part=share_on_gpu.part / total) for share_on_gpu in on_gpu)


def _in_turn(entry: Allocation, uuid: str) -> float:
    """Return the pod's peak as a fraction of its shares' sum; 1 if all are in use at once."""
    if all(share.steps == ALL_STEPS for share in entry.shares):
        return 1.0
    there = [share for share in entry.shares if uuid in share.gpu_uuids]
    totals = sum(share.request_percent for share in there), sum(share.memory_bytes for share in there)
    return max((held / total for held, total in zip(ledger.taken(there), totals, strict=True) if total), default=1.0)


class PartState(enum.StrEnum):
    """The state of a part of a GPU."""

    ALLOCATED = "allocated"  # held by shares
    HELD = "held"  # kept by a backfill reservation
    FREE = "free"
    FRAGMENTED = "fragmented"  # free, in pieces too small for the typical request
    CORDONED = "cordoned"  # free, but closed to new pods by an admin
    UNHEALTHY = "unhealthy"  # free, but the GPU or its node cannot run pods
    OTHER_MODE = "other-mode"  # not fractional (the kubelet hands it out), or changing its mode


Parts = Mapping[tuple[str, PartState], float]  # in GPUs, by GPU model


def divide(node: GpuNode, typical_of: TypicalOf, kinds: Kinds = ARBITER) -> Parts:
    """Divide a node's GPUs; `typical_of`: the mix of requests by the GPU's bytes; `kinds`: of pods that name none."""
    taken: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for charge in charges(node):
        taken[charge.gpu_uuid][charge.entry.is_backfill_reservation] += charge.part
    used = ledger.use(node)
    parts: dict[tuple[str, PartState], float] = collections.defaultdict(float)
    for gpu in node.gpus:
        allocated, held = taken[gpu.uuid]
        rest, fragmented = max(0.0, 1.0 - allocated - held), 0.0
        state = _unusable(gpu)
        if state is None and rest:
            free_part, useless = stranded(gpu, used[gpu.uuid], typical_of, kinds)
            fragmented = rest * useless / free_part if free_part else rest
        for what, part in (
            (PartState.ALLOCATED, allocated),
            (PartState.HELD, held),
            (state or PartState.FREE, rest - fragmented),
            (PartState.FRAGMENTED, fragmented),
        ):
            if part > 0:
                parts[gpu.model, what] += part
    return dict(parts)


def _unusable(gpu: Gpu) -> PartState | None:
    """Return the state of free capacity that no new pod can use, or None."""
    if gpu.mode is not Mode.FRACTIONAL or gpu.pending_mode is not None:
        return PartState.OTHER_MODE
    if gpu.unowned:
        return PartState.OTHER_MODE
    if gpu.closed or not gpu.healthy:
        return PartState.UNHEALTHY
    return PartState.CORDONED if gpu.cordoned else None
