"""Defragmentation: the fewest moves by which a share fits that does not fit now.

A plan is made by playing it: the GPUs that are to become free are cordoned, the pods on them that may be moved are
evicted and placed again by the placement code, each where it says, and at the end the share is placed. A plan that does
not play out is none. Of several the one with the fewest moves is taken, then that which moves the least.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from gpushare import errors, ledger, pod
from gpushare.allocation import Allocation, GivenShare
from gpushare.fragmentation import Fragmentation
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement, filters
from gpushare.request import Demand
from kubectl_gpushare.planning import evicting, resizing
from kubectl_gpushare.planning import world as worlds
from kubectl_gpushare.planning.evicting import Budgets
from kubectl_gpushare.planning.world import Asked, World

MOST_MOVES = 8  # for one share
_MOST_ON_A_CARD = 10  # movable pods of a card that are looked at, the smallest first
_MOST_TRIED = 200  # plans for one share that are played
Spent = collections.Counter[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A pod that is evicted, and where placement would put the one that its owner makes instead."""

    manifest: pod.PodJson
    entry: Allocation
    before: str  # GPUs in a word
    after: str


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One share: the moves that make room for it, and where it goes then. `gpus` is empty if there is no way."""

    name: str
    asked: Asked
    gpus: str
    cordon: tuple[tuple[str, str], ...]  # node and UUID of the GPUs that take nothing new meanwhile
    moves: tuple[Move, ...]
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The steps in order; `fixed`: why pods that are in the way may not be moved, and how many."""

    steps: tuple[Step, ...]
    before: Fragmentation
    after: Fragmentation
    fixed: tuple[tuple[str, int], ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        """Of all steps."""
        return tuple(move for step in self.steps for move in step.moves)


@dataclasses.dataclass(frozen=True, slots=True)
class _Option:
    """A way to try: who leaves, of which GPUs."""

    node: str
    uuids: tuple[str, ...]
    leaving: tuple[Allocation, ...]

    @property
    def price(self) -> tuple[int, int, int, str]:
        shares = [share for entry in self.leaving for share in entry.shares]
        return (
            len(self.leaving),
            sum(share.request_percent * len(share.gpu_uuids) for share in shares),
            sum(share.memory_bytes * len(share.gpu_uuids) for share in shares),
            self.node,
        )


def plan(world: World, wanted: Sequence[tuple[str, Asked]], budgets: Budgets, *, stay: bool = True) -> Plan:
    """Makes room for each of these in turn; the world is afterwards as the plan leaves it.

    stay: the shares are pods that wait, and stay where they were placed; else each only asks for a hole.
    """
    before = world.fragmentation()
    steps: list[Step] = []
    fixed: collections.Counter[str] = collections.Counter()
    spent: Spent = collections.Counter()
    for name, asked in wanted:
        steps.append(_step(world, name, asked, budgets, spent, fixed))
        if steps[-1].gpus and stay:
            found = world.place(asked.manifest, asked.request)
            if isinstance(found, Placement):
                world.take(asked.manifest, asked.request, found)
    return Plan(tuple(steps), before, world.fragmentation(), tuple(fixed.most_common()))


def _step(
    world: World, name: str, asked: Asked, budgets: Budgets, spent: Spent, fixed: collections.Counter[str]
) -> Step:
    found = world.place(asked.manifest, asked.request)
    if isinstance(found, Placement):
        return Step(name, asked, worlds.gpus(found, world.views), (), ())
    priority = pod.priority(asked.manifest) if pod.uid(asked.manifest) else evicting.SYSTEM_PRIORITY
    may_leave = _Movable(world, budgets, priority, fixed)
    options = sorted(_options(world, asked, may_leave), key=lambda option: option.price)
    for option in options[:_MOST_TRIED]:
        played = _play(world, asked, option, budgets, spent, may_leave)
        if played is not None:
            moves, gpus = played
            spent.update(evicting.spend(budgets, [move.manifest for move in moves]))
            cordon = tuple((option.node, uuid) for uuid in option.uuids) if moves else ()
            return Step(name, asked, gpus, cordon, moves)
    return Step(name, asked, "", (), (), str(found))


class _Movable:
    """Judges once which allocation may leave."""

    def __init__(self, world: World, budgets: Budgets, priority: int, fixed: collections.Counter[str]) -> None:
        self._world = world
        self._budgets = budgets
        self._priority = priority
        self._fixed = fixed
        self._known: dict[str, Asked | None] = {}

    def __call__(self, entry: Allocation) -> Asked | None:
        """What it asks for, if it may be moved."""
        if entry.id not in self._known:
            self._known[entry.id] = self._judge(entry)
        return self._known[entry.id]

    def _judge(self, entry: Allocation) -> Asked | None:
        manifest = self._world.manifest(entry)
        if entry.is_hold or entry.reserved_until is not None or manifest is None:
            self._fixed["not known as a running pod"] += 1
            return None
        reason = evicting.protected(manifest, most_priority=self._priority)
        budget = self._budgets.against(manifest, {})
        if reason or budget:
            self._fixed[reason or f"protected by the PodDisruptionBudget {budget}"] += 1
            return None
        if resizing.was_resized(manifest, entry):
            self._fixed["resized, and made anew as they were before"] += 1
            return None
        try:
            return Asked.of(manifest)
        except errors.RequestError:
            self._fixed["a request that makes no sense"] += 1
            return None


def _options(world: World, asked: Asked, may_leave: _Movable) -> Iterator[_Option]:
    """For each node the cards of which the fewest have to leave; only pods with one part are made room for."""
    judge = world.judge(asked.manifest)
    demand = asked.request.demands[0]
    for view in world.views.values():
        if len(asked.request.demands) > 1 or judge(view.node.name) is not None:
            continue
        by_card = []
        for card, used in view.cards():
            leaving = _leaving(card, used, demand, asked, may_leave)
            if leaving is not None:
                by_card.append((len(leaving), card.index, card.uuid, leaving))
        by_card.sort(key=lambda one: one[:2])
        if len(by_card) < demand.gpus:
            continue
        for start in range(len(by_card) if demand.gpus == 1 else 1):
            chosen = by_card[start : start + demand.gpus]
            together = {entry.id: entry for *_, entries in chosen for entry in entries}
            if 0 < len(together) <= MOST_MOVES:
                yield _Option(view.node.name, tuple(uuid for _, _, uuid, _ in chosen), tuple(together.values()))


def _leaving(
    card: Gpu, used: ledger.Use, demand: Demand, asked: Asked, may_leave: _Movable
) -> tuple[Allocation, ...] | None:
    """The fewest holders, of these the smallest, without which the card would do; None if there are none such."""

    def would_do(rest: ledger.Use) -> bool:
        return filters.reject(filters.Question(card, rest, demand.share, asked.request.constraints)) is None

    if not would_do(ledger.NOTHING):
        return None
    movable = sorted((one for one in used.holders if may_leave(one)), key=lambda one: _size(one, card.uuid))
    for count in range(min(len(movable), MOST_MOVES) + 1):
        for some in itertools.combinations(movable[:_MOST_ON_A_CARD], count):
            if would_do(_without(card, used, some)):
                return some
    return None


def _without(card: Gpu, used: ledger.Use, gone: Sequence[Allocation]) -> ledger.Use:
    ids = {entry.id for entry in gone}
    rest = ledger.NOTHING
    for entry in used.holders:
        for share in entry.shares if entry.id not in ids else ():
            if card.uuid in share.gpu_uuids:
                rest = rest.plus(entry, share)
    return rest


def _size(entry: Allocation, uuid: str) -> tuple[int, int]:
    shares: list[GivenShare] = [share for share in entry.shares if uuid in share.gpu_uuids]
    return sum(share.request_percent for share in shares), sum(share.memory_bytes for share in shares)


def _play(
    world: World, asked: Asked, option: _Option, budgets: Budgets, spent: Spent, may_leave: _Movable
) -> tuple[tuple[Move, ...], str] | None:
    """The moves and where the share goes then, with the world as it is then; None, and the world as before, if not."""
    undone: list[Callable[[], None]] = []
    budget = collections.Counter(spent)
    moves: list[Move] = []
    cordoned = _cordon(world, option, undone)
    for entry in sorted(option.leaving, key=lambda one: -_total(one)):
        mover = may_leave(entry)
        moved = _move(world, option.node, entry, mover, undone) if mover else None
        if moved is None or budgets.against(moved.manifest, budget):
            break
        budget.update(evicting.spend(budgets, [moved.manifest]))
        moves.append(moved)
    else:
        world.put(NodeView.of(_opened(world.views[option.node], cordoned)))
        found = world.place(asked.manifest, asked.request)
        if isinstance(found, Placement):
            return tuple(moves), worlds.gpus(found, world.views)
    for undo in reversed(undone):
        undo()
    return None


def _cordon(world: World, option: _Option, undone: list[Callable[[], None]]) -> frozenset[str]:
    view = world.views[option.node]
    undone.append(lambda: world.put(view))
    fresh = frozenset(card.uuid for card in view.node.gpus if card.uuid in option.uuids and not card.cordoned)
    world.put(NodeView.of(_with_cordon(view, fresh, cordoned=True)))
    return fresh


def _opened(view: NodeView, cordoned: frozenset[str]) -> GpuNode:
    return _with_cordon(view, cordoned, cordoned=False)


def _with_cordon(view: NodeView, uuids: frozenset[str], *, cordoned: bool) -> GpuNode:
    cards = tuple(
        dataclasses.replace(card, cordoned=cordoned) if card.uuid in uuids else card for card in view.node.gpus
    )
    return dataclasses.replace(view.node, gpus=cards)


def _move(world: World, node: str, entry: Allocation, mover: Asked, undone: list[Callable[[], None]]) -> Move | None:
    view = world.views[node]
    cards = view.node.gpu_by_uuid()
    indexes = sorted(cards[uuid].index for uuid in entry.gpu_uuids if uuid in cards)
    undone.append(world.leave(mover.manifest, node, entry))
    fresh = _anew(mover.manifest)
    found = world.place(fresh, mover.request)
    if not isinstance(found, Placement):
        return None
    undone.append(world.take(fresh, mover.request, found))
    before = f"{node}/" + ",".join(map(str, indexes))
    return Move(mover.manifest, entry, before, worlds.gpus(found, world.views))


def _anew(manifest: pod.PodJson) -> pod.PodJson:
    """The pod that its owner makes instead: nowhere yet, and of another name."""
    metadata = {key: value for key, value in (manifest.get("metadata") or {}).items() if key != "uid"}
    spec = {key: value for key, value in (manifest.get("spec") or {}).items() if key != "nodeName"}
    return {**manifest, "metadata": {**metadata, "name": f"{metadata.get('name')}-anew"}, "spec": spec, "status": {}}


def _total(entry: Allocation) -> int:
    return sum(share.request_percent * len(share.gpu_uuids) for share in entry.shares)
