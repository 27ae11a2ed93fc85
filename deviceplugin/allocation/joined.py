"""How well the GPUs of a node are joined: as the driver says it, and else from what the inventory knows of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from deviceplugin.allocation import aligned
from gpushare.gpu import Gpu


class GpuPath(Protocol):
    """Between two GPUs; `common` is a word of `aligned.WEIGHTS`."""

    @property
    def common(self) -> str:
        """What they have in common."""

    @property
    def nvlinks(self) -> int:
        """How many links of NVLink go from one to the other, without a switch."""


_UNKNOWN: Final[Mapping[tuple[str, str], GpuPath]] = {}


def scores(gpus: Sequence[Gpu], paths: Mapping[tuple[str, str], GpuPath] = _UNKNOWN) -> dict[tuple[str, str], int]:
    """The score of each pair, by UUID.

    paths: of pairs, in either order. GPUs of one NVLink group count as joined by one link at least: through a switch
    each reaches all others alike.
    """
    pair_scores = {}
    for gpu, other in itertools.combinations(gpus, 2):
        path = paths.get((gpu.uuid, other.uuid)) or paths.get((other.uuid, gpu.uuid))
        pair_scores[gpu.uuid, other.uuid] = _pair(gpu, other, path)
    return pair_scores


def _pair(gpu: Gpu, other: Gpu, path: GpuPath | None) -> int:
    grouped = gpu.link_group is not None and gpu.link_group == other.link_group
    same_cpu = gpu.numa_node is not None and gpu.numa_node == other.numa_node
    common = path.common if path is not None else "SameCPU" if same_cpu else "CrossCPU"
    return aligned.pair_score([common], nvlinks=max(int(grouped), path.nvlinks if path is not None else 0))
