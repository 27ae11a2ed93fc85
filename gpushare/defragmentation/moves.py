"""Moves of pods: plans of them, and MoveSimulator, which makes them on the cluster in memory.

GPUs that are to become free are cordoned meanwhile. Their pods leave and are placed again by the placement engine. If a
pod finds no place, other pods may have to move first, by the same search. Options with the fewest moves are tried
first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

from gpushare import ledger, pod
from gpushare.allocation import Allocation
from gpushare.defragmentation import leaving
from gpushare.defragmentation.leaving import Departure, Movable, Mover
from gpushare.gpu_capacity import Fragmentation
from gpushare.placement import NodeView, Placement
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World

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


@dataclasses.dataclass(slots=True)
class Effort:
    """The remaining attempts to make room, of a whole plan for pods that leave."""

    attempts: int = 200
    inspections: int = 50_000  # GPUs inspected


class MoveSimulator:
    """Moves pods on a world; `undo` restores it."""

    def __init__(self, world: World, may_leave: Movable, effort: Effort | None = None) -> None:
        self._world = world
        self._may_leave = may_leave
        self._effort = effort or Effort()
        self._own = Effort()  # for options whose pods all find a place at once
        self._undo: list[Callable[[], None]] = []

    def room(self, asked: RequestingPod) -> tuple[tuple[Move, ...], str] | None:
        """Make room for a pod with the fewest moves; return them and the pod's GPUs, or None."""
        options = leaving.options(self._world, asked, self._may_leave)
        tries = (self._try(asked, options, most, (), ()) for most in range(1, leaving.MAX_MOVES + 1))
        return next(filter(None, tries), None)

    def relocate(self, mover: Mover, outer: Closed = ()) -> Move | None:
        """Move one pod to where placement puts it while its GPUs are cordoned; None if it fits nowhere else.

        outer: GPUs that are cordoned already and stay so.
        """
        ours = tuple((mover.node, uuid) for uuid in mover.entry.gpu_uuids if (mover.node, uuid) not in outer)
        self.cordon(ours, cordoned=True)
        moves = self._send(mover.node, mover.entry, 0, (*outer, *ours), ())
        self.cordon(ours, cordoned=False)
        return moves[0] if moves else None

    def vacate(self, node: str, closed: Closed) -> tuple[Move, ...] | None:
        """Move all pods off a node, the largest first, while `closed` GPUs are cordoned; None if one fits nowhere."""
        moves: list[Move] = []
        self.cordon(closed, cordoned=True)
        for entry in sorted(self._world.views[node].node.allocations, key=lambda entry: -ledger.held_in_all(entry)[0]):
            done = self._send(node, entry, 0, closed, ())
            if done is None:
                return None
            moves += done
        self.cordon(closed, cordoned=False)
        return tuple(moves)

    def admit(self, asked: RequestingPod) -> str:
        """Place a gated pod; return its GPUs, or an empty string if it still fits nowhere."""
        answer = self._world.place(asked.manifest, asked.request)
        if not isinstance(answer, Placement):
            return ""
        self._undo.append(self._world.assign(asked.manifest, asked.request, answer))
        return worlds.gpus(answer, self._world.views)

    def cordon(self, gpus: Collection[tuple[str, str]], *, cordoned: bool) -> None:
        """Cordon or uncordon these GPUs."""
        for name in dict.fromkeys(node for node, _ in gpus):
            before = self._world.views[name]
            changed = tuple(
                dataclasses.replace(gpu, cordoned=cordoned) if (name, gpu.uuid) in gpus else gpu
                for gpu in before.node.gpus
            )
            self._undo.append(functools.partial(self._world.put, before))
            self._world.put(NodeView.from_node(dataclasses.replace(before.node, gpus=changed)))

    @property
    def mark(self) -> int:
        """The state now, for `undo`."""
        return len(self._undo)

    def undo(self, mark: int = 0) -> None:
        """Undo all changes, or those after a mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def _try(
        self, asked: RequestingPod, options: Sequence[Departure], most: int, closed: Closed, busy: Collection[str]
    ) -> tuple[tuple[Move, ...], str] | None:
        """Try options with exactly `most` moves, then smaller ones whose spare moves make room for pods that leave."""
        for option in sorted(options, key=lambda option: len(option.leaving) != most):
            spare = most - len(option.leaving)
            if spare < 0:
                continue
            effort = self._effort if spare else self._own
            effort.attempts -= 1
            if effort.attempts < 0:
                continue
            # With several GPUs, one that is free already may take a pod of another, if enough is left afterwards.
            for to_the_end in (True, False)[: len(option.uuids)]:
                mark = self.mark
                room = self._simulate(asked, option, spare, closed, busy, to_the_end=to_the_end)
                if room is not None:
                    return room
                self.undo(mark)
        return None

    def _simulate(
        self,
        asked: RequestingPod,
        option: Departure,
        spare: int,
        outer: Closed,
        busy: Collection[str],
        *,
        to_the_end: bool,
    ) -> tuple[tuple[Move, ...], str] | None:
        """Make the moves of one option. Its GPUs are cordoned while pods still have to leave them, or `to_the_end`."""
        busy = {*busy, *(mover.entry.id for mover in option.leaving)}
        moves: list[Move] = []
        left = [mover.entry for mover in sorted(option.leaving, key=lambda mover: -mover.size[0])]
        ours: Closed = ()
        while left:
            used = {uuid for entry in left for uuid in entry.gpu_uuids}
            wanted = tuple((option.node, uuid) for uuid in option.uuids if to_the_end or uuid in used)
            self.cordon([gpu for gpu in ours if gpu not in wanted], cordoned=False)
            self.cordon([gpu for gpu in wanted if gpu not in ours], cordoned=True)
            ours = wanted
            done = self._send(option.node, left.pop(0), spare, (*outer, *ours), busy)
            if done is None:
                return None
            moves += done
            spare -= len(done) - 1
        self.cordon(ours, cordoned=False)
        answer = self._world.place(asked.manifest, asked.request)
        return (tuple(moves), worlds.gpus(answer, self._world.views)) if isinstance(answer, Placement) else None

    def _send(
        self, node: str, entry: Allocation, spare: int, closed: Closed, busy: Collection[str]
    ) -> list[Move] | None:
        """Move a pod away, after other moves that make room for it; None if there is no way."""
        mover = self._may_leave(entry)
        if mover is None:
            return None
        moved = self._move(node, entry, mover, closed)
        if moved is not None:
            return [moved]
        fresh = RequestingPod(worlds.successor(mover.manifest), mover.request)
        for most in range(1, spare + 1):
            if self._effort.inspections <= 0 or not self._may_leave.has_budget(mover.manifest):
                return None
            self._effort.inspections -= sum(len(view.node.gpus) for view in self._world.views.values())
            options = leaving.options(self._world, fresh, self._may_leave, busy)
            # Pods that make room for it may also move to the cordoned GPUs, if enough is left there.
            for kept in (closed, ()):
                mark = self.mark
                self.cordon([gpu for gpu in closed if gpu not in kept], cordoned=False)
                room = self._try(fresh, options, most, kept, busy)
                self.cordon([gpu for gpu in closed if gpu not in kept], cordoned=True)
                moved = self._move(node, entry, mover, closed) if room is not None else None
                if room is not None and moved is not None:
                    return [*room[0], moved]
                self.undo(mark)
        return None

    def _move(self, node: str, entry: Allocation, mover: RequestingPod, closed: Closed) -> Move | None:
        if not self._may_leave.has_budget(mover.manifest):
            return None
        mark = self.mark
        indexes = [gpu.index for gpu in self._world.views[node].node.gpus if gpu.uuid in entry.gpu_uuids]
        before = f"{node}/" + ",".join(map(str, sorted(indexes)))
        self._undo.append(self._world.remove(mover.manifest, node, entry))
        fresh = worlds.successor(mover.manifest)
        if leaving.stands_for_cpu_only(entry):
            target = self._world.likely_node(fresh, left=node)
            before, after = node, "" if target == node else target  # the scheduler might put it there again
            if after:
                self._undo.append(self._world.bind(fresh, after))
        else:
            after = self.admit(RequestingPod(fresh, mover.request))
        if not after:
            self.undo(mark)
            return None
        self._undo.append(self._may_leave.spend(mover.manifest))
        return Move(mover.manifest, entry, before, after, closed)
