"""Division: what all GPUs are used for, as parts that add up to the number of GPUs.

Free is what the typical request can use. What is free and of no use to it is stranded: fragmented, or on a GPU that is
cordoned or unhealthy.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Mapping

from gpushare import accounting, fragmentation, ledger
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import GpuNode
from gpushare.typical import TypicalOf


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
    for charge in accounting.charges(node):
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
    """Why nothing new can come on the GPU, whatever is free on it."""
    if gpu.mode is not Mode.FRACTIONAL or gpu.pending_mode is not None:
        return PartState.OTHER_MODE
    if gpu.closed or not gpu.healthy:
        return PartState.UNHEALTHY
    return PartState.CORDONED if gpu.cordoned else None
