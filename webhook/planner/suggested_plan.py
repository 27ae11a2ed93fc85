"""SuggestedPlan: the moves of one plan, as the planner's process writes them and the placer reads them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gpushare import pod
from gpushare.allocation import PodRef
from gpushare.defragmentation.plan import DefragPlan


@dataclasses.dataclass(frozen=True, slots=True)
class SuggestedMove:
    """A pod to evict. before, after: its GPUs, as `gpu-1/0,2`. closed: node and UUID of GPUs to cordon meanwhile."""

    pod: PodRef
    allocation_id: str
    before: str
    after: str
    closed: tuple[tuple[str, str], ...]

    @property
    def source(self) -> str:
        """The node that it leaves."""
        return self.before.rpartition("/")[0]

    @property
    def target(self) -> str:
        """The node where its successor is expected."""
        return self.after.rpartition("/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class SuggestedStep:
    """Moves, and the waiting pod that they let in, if any, with its GPUs then."""

    moves: tuple[SuggestedMove, ...]
    admitted: PodRef | None = None
    gpus: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SuggestedPlan:
    """gained: by how many GPUs the moves raise what the cluster's mix can use, pods that are let in counted twice."""

    steps: tuple[SuggestedStep, ...] = ()
    gained: float = 0.0

    @classmethod
    def of(cls, plan: DefragPlan) -> SuggestedPlan:
        """The steps of a plan that have moves."""
        return cls(
            tuple(
                SuggestedStep(
                    tuple(
                        SuggestedMove(_ref(move.manifest), move.entry.id, move.before, move.after, move.closed)
                        for move in step.moves
                    ),
                    None if step.asked is None else _ref(step.asked.manifest),
                    step.gpus,
                )
                for step in plan.steps
                if step.moves
            ),
            plan.gained or 0.0,
        )

    @classmethod
    def read(cls, text: str) -> SuggestedPlan:
        """Raises ValueError, KeyError or TypeError for what `write` has not written."""
        document = json.loads(text)
        return cls(tuple(map(_step, document["steps"])), float(document["gained"]))

    def write(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def moves(self) -> tuple[SuggestedMove, ...]:
        """The moves of all steps, in order."""
        return tuple(move for step in self.steps for move in step.moves)


def _ref(manifest: pod.PodJson) -> PodRef:
    return PodRef(*pod.namespaced_name(manifest), pod.uid(manifest))


def _step(entry: dict[str, Any]) -> SuggestedStep:
    admitted = entry["admitted"]
    return SuggestedStep(
        tuple(
            SuggestedMove(
                PodRef(**move["pod"]),
                move["allocation_id"],
                move["before"],
                move["after"],
                tuple((node, uuid) for node, uuid in move["closed"]),
            )
            for move in entry["moves"]
        ),
        None if admitted is None else PodRef(**admitted),
        entry["gpus"],
    )
