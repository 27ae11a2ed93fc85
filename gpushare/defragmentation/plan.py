"""DefragPlan: moves of pods, and the pods that they admit, step by step."""

from __future__ import annotations

import dataclasses

from gpushare.defragmentation.playing import Closed, Move
from gpushare.fragmentation import Fragmentation
from gpushare.whatif.world import RequestingPod


@dataclasses.dataclass(frozen=True, slots=True)
class DefragStep:
    """One share: the moves that make room for it, and where it goes then. `gpus` is empty if there is no way.

    asked: None for moves that admit no pod: they reduce fragmentation, or empty the GPUs of a node, `gpus`.
    """

    name: str
    asked: RequestingPod | None
    gpus: str
    moves: tuple[Move, ...] = ()
    reason: str = ""

    @property
    def closed(self) -> Closed:
        """The GPUs that are cordoned during some of the moves: node and UUID."""
        return tuple(dict.fromkeys(gpu for move in self.moves for gpu in move.closed))


@dataclasses.dataclass(frozen=True, slots=True)
class DefragPlan:
    """The steps in order; `fixed`: why pods that are in the way may not be moved, and how many.

    gained: by how many GPUs the moves raise the free part that the cluster's mix can use; None for plans that are not
    made by that.
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
