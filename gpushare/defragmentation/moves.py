"""Moves of pods: plans of them, and MoveSimulator, which makes them on the cluster in memory.

GPUs that are to become free are cordoned meanwhile. Their pods leave and are placed again by the placement engine. If a
pod finds no place, other pods may have to move first, by the same search. Options with the fewest moves are tried
first.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from gpushare import pod
from gpushare.allocation import Allocation
from gpushare.defragmentation import leaving
from gpushare.defragmentation.leaving import Departure, Movable, Mover
from gpushare.gpu_capacity import Fragmentation
from gpushare.placement import NodeView, Placement
from gpushare.whatif import world as worlds
from gpushare.whatif.requesting_pod import RequestingPod

_MAX_TRIES: Final = 200  # of options whose pods all find a place at once, for one share; and of others, for a plan
_MAX_INSPECTED: Final = 50_000  # GPUs inspected for pods that make room for others, for a plan
Closed = tuple[tuple[str, str], ...]  # node and UUID of cordoned GPUs
Waiting = Sequence[tuple[str, RequestingPod]]  # pods by unique names


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
        return leaving.stands_for_cpu_only(self.entry)

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


class MoveSimulator:
    """Moves pods on a world, and cordons GPUs there: those in `closed`. `undo` restores it."""

    def __init__(self, movable: Movable) -> None:
        self._movable = movable
        self._world = movable.world
        self._tries: collections.Counter[bool] = collections.Counter()  # whether with moves to make room for others
        self._inspected = 0
        self._undo: list[Callable[[], None]] = []
        self.closed: Closed = ()

    def room(self, asked: RequestingPod) -> tuple[Move, ...]:
        """Make room for a pod with the fewest moves; return them, or nothing if there is no way."""
        self._tries[False] = 0
        options = leaving.options(self._movable, asked)
        tries = (self._try(asked, options, most, ()) for most in range(1, leaving.MAX_MOVES + 1))
        return next(filter(None, tries), ())

    def admit(self, asked: RequestingPod) -> str:
        """Place a gated pod; return its GPUs, or an empty string if it still fits nowhere."""
        answer = self._world.place(asked.manifest, asked.request)
        if not isinstance(answer, Placement):
            return ""
        self._undo.append(self._world.assign(asked.manifest, asked.request, answer))
        return worlds.gpus(answer, self._world.views)

    def cordon(self, gpus: Iterable[tuple[str, str]]) -> None:
        """Cordon these GPUs, and uncordon the other ones of `closed`."""
        before, self.closed = self.closed, tuple(dict.fromkeys(gpus))
        changed = {*before}.symmetric_difference(self.closed)
        views = [self._world.views[name] for name in dict.fromkeys(node for node, _ in changed)]
        for view in views:
            known = list(view.node.gpus)
            for place, gpu in enumerate(known):
                if (key := (view.node.name, gpu.uuid)) in changed:
                    known[place] = dataclasses.replace(gpu, cordoned=key in self.closed)
            self._world.put(NodeView.from_node(dataclasses.replace(view.node, gpus=tuple(known))))

        def undo() -> None:
            self.closed = before
            for view in views:
                self._world.put(view)

        self._undo.append(undo)

    @property
    def mark(self) -> int:
        """The state now, for `undo`."""
        return len(self._undo)

    def undo(self, mark: int = 0) -> None:
        """Undo all changes, or those after a mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def leave(
        self, option: Departure, spare: int = 0, busy: Collection[str] = (), *, to_the_end: bool = True
    ) -> tuple[Move, ...] | None:
        """Move the pods of an option, the largest first; None if one finds no place.

        Its GPUs are cordoned while pods still have to leave them, or `to_the_end`. spare: how many other moves may make
        room for these pods, not of `busy` ones.
        """
        outer, moves = self.closed, list[Move]()
        busy = {*busy, *(mover.entry.id for mover in option.leaving)}
        left = sorted(option.leaving, key=lambda mover: -mover.percent)
        while left:
            used = {uuid for mover in left for uuid in mover.entry.gpu_uuids}
            self.cordon((*outer, *((option.node, uuid) for uuid in option.uuids if to_the_end or uuid in used)))
            done = self._send(left.pop(0), spare, busy)
            if done is None:
                return None
            moves += done
            spare -= len(done) - 1
        self.cordon(outer)
        return tuple(moves)

    def _try(
        self, asked: RequestingPod, options: Sequence[Departure], most: int, busy: Collection[str]
    ) -> tuple[Move, ...] | None:
        """Try options with exactly `most` moves, then smaller ones whose spare moves make room for pods that leave."""
        for option in sorted(options, key=lambda option: len(option.leaving) != most):
            spare = most - len(option.leaving)
            self._tries[spare > 0] += spare >= 0
            if spare < 0 or self._tries[spare > 0] > _MAX_TRIES:
                continue
            # With several GPUs, one that is free already may take a pod of another, if enough is left afterwards.
            for to_the_end in (True, False)[: len(option.uuids)]:
                mark = self.mark
                moves = self.leave(option, spare, busy, to_the_end=to_the_end)
                if moves and isinstance(self._world.place(asked.manifest, asked.request), Placement):
                    return moves
                self.undo(mark)
        return None

    def _send(self, mover: Mover, spare: int, busy: Collection[str]) -> tuple[Move, ...] | None:
        """Move a pod away, after other moves that make room for it; None if there is no way."""
        if moved := self._move(mover):
            return (moved,)
        closed = self.closed
        for most in range(1, spare + 1):
            if self._inspected >= _MAX_INSPECTED or not self._movable.has_budget(mover):
                return None
            self._inspected += sum(len(view.node.gpus) for view in self._world.views.values())
            options = leaving.options(self._movable, mover.fresh, busy)
            # Pods that make room for it may also move to the cordoned GPUs, if enough is left there.
            for kept in (closed, ()):
                mark = self.mark
                self.cordon(kept)
                room = self._try(mover.fresh, options, most, busy)
                self.cordon(closed)
                if room and (moved := self._move(mover)):
                    return (*room, moved)
                self.undo(mark)
        return None

    def _move(self, mover: Mover) -> Move | None:
        if not self._movable.has_budget(mover):
            return None
        mark, node, world = self.mark, mover.node, self._world
        before = worlds.format_gpus(world.views[node].node, mover.entry.gpu_uuids)
        self._undo.append(world.remove(mover.manifest, node, mover.entry))
        if mover.is_cpu_only:
            target = world.likely_node(mover.fresh.manifest, left=node)
            before, after = node, "" if target == node else target  # the scheduler might put it there again
            if after:
                self._undo.append(world.bind(mover.fresh.manifest, after))
        else:
            after = self.admit(mover.fresh)
        if not after:
            self.undo(mark)
            return None
        self._undo.append(self._movable.spend(mover))
        return Move(mover.manifest, mover.entry, before, after, self.closed)
