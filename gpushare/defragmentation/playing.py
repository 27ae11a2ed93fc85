"""Playing: tries ways to make room on the world until one succeeds, those with the fewest moves first.

GPUs that are to become free take nothing meanwhile; their pods leave and are placed again by the placement code. For a
pod that finds no place, room may be made in the same manner before it leaves.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

from gpushare import ledger, pod
from gpushare.allocation import Allocation
from gpushare.defragmentation import cpu_only, evicting, leaving
from gpushare.defragmentation.cpu_only import CpuOnlyPods
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import MAX_MOVES, Departure, Movable
from gpushare.defragmentation.plan import Closed, Move
from gpushare.placement import NodeView, Placement
from gpushare.whatif import unplaced
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World

Spent = collections.Counter[tuple[str, str]]
_MAX_PLAYED = 200  # ways per share in which every pod finds a place at once


@dataclasses.dataclass(slots=True)
class Effort:
    """What a whole plan may still try to make room for pods that leave."""

    plays: int = 200
    looks: int = 50_000  # GPUs inspected


class Player:
    """Tries to make room on a world; leaves it as the moves leave it, or unchanged if there are none."""

    def __init__(
        self,
        world: World,
        budgets: Budgets,
        spent: Spent,
        may_leave: Movable,
        effort: Effort,
        cpu_only_pods: CpuOnlyPods | None = None,
    ) -> None:
        """`spent`: the disruptions that earlier moves took from the budgets; `cpu_only_pods`: to move as well."""
        self._world = world
        self._budgets = budgets
        self._spent = collections.Counter(spent)
        self._may_leave = may_leave
        self._cpu_only_pods = cpu_only_pods
        self._undo: list[Callable[[], None]] = []
        self._plays = _MAX_PLAYED
        self._effort = effort

    def room(self, asked: RequestingPod) -> tuple[tuple[Move, ...], str] | None:
        """The fewest moves that make room for a pod, and the GPUs where it goes then; None if there are none."""
        options = leaving.options(self._world, asked, self._may_leave, self._cpu_only_pods)
        for most in range(1, MAX_MOVES + 1):
            room = self._try(asked, options, most, (), frozenset())
            if room is not None:
                return room
        return None

    def relocate(self, node: str, entry: Allocation, outer: Closed = ()) -> Move | None:
        """Moves one pod to where it is placed while its GPUs are cordoned; None if it fits nowhere else.

        outer: GPUs that are cordoned already and stay so.
        """
        ours = tuple((node, uuid) for uuid in entry.gpu_uuids if (node, uuid) not in outer)
        self.close(ours)
        moves = self._send(node, entry, 0, (*outer, *ours), ())
        self.close(ours, cordoned=False)
        return moves[0] if moves else None

    def close(self, gpus: Closed, *, cordoned: bool = True) -> None:
        """Cordons these GPUs, none of which was, or uncordons them."""
        self._cordon(gpus, cordoned=cordoned)

    def vacate(self, node: str, closed: Closed) -> tuple[Move, ...] | None:
        """Moves all pods off a node, the largest first, while `closed` GPUs are cordoned; None if one fits nowhere."""
        moves: list[Move] = []
        self._cordon(closed, cordoned=True)
        for entry in sorted(self._world.views[node].node.allocations, key=lambda allocation: -_total(allocation)):
            done = self._send(node, entry, 0, closed, ())
            if done is None:
                return None
            moves += done
        self._cordon(closed, cordoned=False)
        return tuple(moves)

    def admit(self, asked: RequestingPod) -> str:
        """Places a gated pod; returns its GPUs, empty if it still fits nowhere."""
        answer = self._world.place(asked.manifest, asked.request)
        if not isinstance(answer, Placement):
            return ""
        self._undo.append(self._world.assign(asked.manifest, asked.request, answer))
        return worlds.gpus(answer, self._world.views)

    def take_back(self) -> None:
        """Undo all placements, moves and departures so far."""
        self._back(0)

    def _try(
        self, asked: RequestingPod, options: Sequence[Departure], most: int, closed: Closed, busy: Collection[str]
    ) -> tuple[tuple[Move, ...], str] | None:
        """Tries options of exactly `most` moves, then smaller ones whose spare moves make room for those that leave."""
        exactly = [option for option in options if len(option.leaving) == most]
        for option in (*exactly, *(option for option in options if len(option.leaving) < most)):
            spare = most - len(option.leaving)
            if spare:
                self._effort.plays -= 1
            else:
                self._plays -= 1
            if (self._effort.plays if spare else self._plays) < 0:
                continue
            # With several GPUs, one that is free already may take a pod of another, if enough is left then.
            for to_the_end in (True, False)[: len(option.uuids)]:
                mark = len(self._undo)
                room = self._play(asked, option, spare, closed, busy, to_the_end=to_the_end)
                if room is not None:
                    return room
                self._back(mark)
        return None

    def _play(
        self,
        asked: RequestingPod,
        option: Departure,
        spare: int,
        outer: Closed,
        busy: Collection[str],
        *,
        to_the_end: bool,
    ) -> tuple[tuple[Move, ...], str] | None:
        """Plays one option. Its GPUs are cordoned while pods still have to leave them, or `to_the_end`."""
        busy = {*busy, *(entry.id for entry in option.leaving)}
        moves: list[Move] = []
        left = sorted(option.leaving, key=lambda allocation: -_total(allocation))
        ours: frozenset[str] = frozenset()
        while left:
            ours = self._close(
                option, ours, option.uuids if to_the_end else [u for allocation in left for u in allocation.gpu_uuids]
            )
            closed = (*outer, *((option.node, uuid) for uuid in option.uuids if uuid in ours))
            done = self._send(option.node, left.pop(0), spare, closed, busy)
            if done is None:
                return None
            moves += done
            spare -= len(done) - 1
        self._close(option, ours, ())
        answer = self._world.place(asked.manifest, asked.request)
        return (tuple(moves), worlds.gpus(answer, self._world.views)) if isinstance(answer, Placement) else None

    def _send(
        self, node: str, entry: Allocation, spare: int, closed: Closed, busy: Collection[str]
    ) -> list[Move] | None:
        """The moves that make room for a pod, then its own; None if there is no way."""
        mover = self._may_leave(entry)
        if mover is None or self._budgets.against(mover.manifest, self._spent):
            return None
        moved = self._move(node, entry, mover, closed)
        if moved is not None:
            return [moved]
        fresh = RequestingPod(unplaced.successor(mover.manifest), mover.request)
        for most in range(1, spare + 1):
            if self._effort.looks <= 0:
                return None
            self._effort.looks -= sum(len(view.node.gpus) for view in self._world.views.values())
            options = leaving.options(self._world, fresh, self._may_leave.unless(busy), self._cpu_only_pods)
            # Pods that make room for it may also go to the cordoned GPUs, if enough is left there.
            for kept in (closed, ()):
                mark = len(self._undo)
                self._cordon([gpu for gpu in closed if gpu not in kept], cordoned=False)
                room = self._try(fresh, options, most, kept, busy)
                self._cordon([gpu for gpu in closed if gpu not in kept], cordoned=True)
                moved = self._move(node, entry, mover, closed) if room is not None else None
                if room is not None and moved is not None:
                    return [*room[0], moved]
                self._back(mark)
        return None

    def _move(self, node: str, entry: Allocation, mover: RequestingPod, closed: Closed) -> Move | None:
        if self._budgets.against(mover.manifest, self._spent):  # again: moves that made room for it count, too
            return None
        gpus = self._world.views[node].node.gpu_by_uuid()
        indexes = sorted(gpus[uuid].index for uuid in entry.gpu_uuids if uuid in gpus)
        mark = len(self._undo)
        self._undo.append(self._world.remove(mover.manifest, node, entry))
        fresh = unplaced.successor(mover.manifest)
        if cpu_only.stands_for(entry):
            target = self._world.likely_node(fresh, left=node)
            if target in {"", node}:  # nobody keeps the scheduler from putting it there again
                self._back(mark)
                return None
            self._undo.append(self._world.bind(fresh, target))
            self._spend(mover.manifest)
            return Move(mover.manifest, entry, node, target, closed)
        answer = self._world.place(fresh, mover.request)
        if not isinstance(answer, Placement):
            self._back(mark)
            return None
        self._undo.append(self._world.assign(fresh, mover.request, answer))
        self._spend(mover.manifest)
        before = f"{node}/" + ",".join(map(str, indexes))
        return Move(mover.manifest, entry, before, worlds.gpus(answer, self._world.views), closed)

    def _spend(self, manifest: pod.PodJson) -> None:
        budgets = evicting.spend(self._budgets, [manifest])
        self._spent.update(budgets)
        self._undo.append(lambda: self._spent.subtract(budgets))

    def _close(self, option: Departure, ours: frozenset[str], wanted: Collection[str]) -> frozenset[str]:
        """Cordons the option's GPUs that are `wanted`, uncordons the others of `ours`; returns those cordoned now."""
        now = frozenset(option.uuids).intersection(wanted)
        self._cordon([(option.node, uuid) for uuid in ours - now], cordoned=False)
        self._cordon([(option.node, uuid) for uuid in now - ours], cordoned=True)
        return now

    def _cordon(self, gpus: Collection[tuple[str, str]], *, cordoned: bool) -> None:
        for name in dict.fromkeys(node for node, _ in gpus):
            before = self._world.views[name]
            changed = tuple(
                dataclasses.replace(gpu, cordoned=cordoned) if (name, gpu.uuid) in gpus else gpu
                for gpu in before.node.gpus
            )
            self._undo.append(functools.partial(self._world.put, before))
            self._world.put(NodeView.from_node(dataclasses.replace(before.node, gpus=changed)))

    def _back(self, mark: int) -> None:
        while len(self._undo) > mark:
            self._undo.pop()()


def _total(entry: Allocation) -> int:
    return ledger.held_in_all(entry)[0]
