"""Links: the part of the pods with several GPUs whose GPUs are all linked to each other."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from openb.trace import Node, Placed


class Links:
    """Counts of placed pods by number of GPUs."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._linked = [node.linked for node in nodes]
        self._pods: collections.Counter[tuple[int, bool]] = collections.Counter()  # (GPUs, whether all are linked)

    def add(self, placed: Placed) -> None:
        """Count a placed pod."""
        linked = self._linked[placed.node] if placed.gpus else 0
        if linked:
            groups = {index // linked for index in placed.gpus}
            self._pods[len(placed.gpus), len(groups) == 1] += 1

    def part(self, gpus: int) -> float:
        """Return the part of the pods with this many GPUs whose GPUs are all linked, 0 to 1; NaN without such pods."""
        linked, apart = self._pods[gpus, True], self._pods[gpus, False]
        return linked / (linked + apart) if linked + apart else math.nan
