"""DefragPlan: moves of pods, and the pods that they admit, step by step."""

from __future__ import annotations

import dataclasses

from gpushare import pod
from gpushare.allocation import Allocation
from gpushare.defragmentation import cpu_only
from gpushare.gpu_capacity import Fragmentation
from gpushare.whatif.world import RequestingPod

Closed = tuple[tuple[str, str], ...]  # node and UUID of cordoned GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """An eviction, and where placement, or the scheduler, would put the replacement pod."""

    manifest: pod.PodJson
    entry: Allocation
    before: str  # GPUs, such as `gpu-1/0,2`; for a CPU-only pod the node
    after: str
    closed: Closed  # during the move

    @property
    def is_cpu_only(self) -> bool:
        """Whether the pod has no share."""
        return cpu_only.stands_for(self.entry)

    @property
    def nodes(self) -> tuple[str, str]:
        """The node that it leaves, and the one where it goes."""
        return self.before.partition("/")[0], self.after.partition("/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class DefragStep:
    """The moves that make room for one share, and its GPUs afterwards. `gpus` is empty if there is no way.

    asked: None for moves that admit no pod: they reduce fragmentation, or empty the GPUs of a node, `gpus`.
    """

    name: str
    asked: RequestingPod | None
    gpus: str
    moves: tuple[Move, ...] = ()
    reason: str = ""

    @property
    def closed(self) -> Closed:
        """The GPUs that are cordoned during some of the moves."""
        return tuple(dict.fromkeys(gpu for move in self.moves for gpu in move.closed))


@dataclasses.dataclass(frozen=True, slots=True)
class DefragPlan:
    """The steps in order; `fixed`: why pods in the way may not be moved, with their number.

    gained: by how many GPUs the moves raise the free capacity that the cluster's mix can use; None for plans by other
    goals.
    """

    steps: tuple[DefragStep, ...]
    before: Fragmentation
    after: Fragmentation
    fixed: tuple[tuple[str, int], ...]
    gained: float | None = None

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves of all steps, in order."""
        return tuple(move for step in self.steps for move in step.moves)
