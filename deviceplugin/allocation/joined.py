"""How well the GPUs of a node are joined, from what the inventory knows: NVLink groups and NUMA nodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from deviceplugin.allocation import aligned
from gpushare.gpu import Gpu


def scores(gpus: Sequence[Gpu]) -> dict[tuple[str, str], int]:
    """The score of each pair, by UUID. GPUs of one NVLink group count as joined by one link."""
    return {(one.uuid, other.uuid): _pair(one, other) for one, other in itertools.combinations(gpus, 2)}


def _pair(one: Gpu, other: Gpu) -> int:
    linked = one.link_group is not None and one.link_group == other.link_group
    same_cpu = one.numa_node is not None and one.numa_node == other.numa_node
    return aligned.pair_score(["SameCPU" if same_cpu else "CrossCPU"], nvlinks=int(linked))
