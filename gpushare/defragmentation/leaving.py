"""Leaving: which pods would have to leave which GPUs for a share to fit there; the cheapest way first."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

from gpushare import errors, ledger, resizing
from gpushare.allocation import Allocation
from gpushare.defragmentation import cpu_only, evicting
from gpushare.defragmentation.cpu_only import CpuOnlyPods
from gpushare.defragmentation.evicting import Budgets
from gpushare.gpu import Gpu
from gpushare.mix import Host
from gpushare.placement import filters
from gpushare.request import Demand, Request
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World

MAX_MOVES = 8  # for one share
_MAX_ON_A_CARD = 10  # movable pods per card that are considered, the smallest first
_MAX_WAYS = 4  # equally small sets of pods per card
_MAX_SETS = 8  # sets of cards per node, for shares on several
MayLeave = Callable[[Allocation], RequestingPod | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Departure:
    """A way to try: the allocations that leave these GPUs."""

    node: str
    uuids: tuple[str, ...]
    leaving: tuple[Allocation, ...]

    @property
    def price(self) -> tuple[int, int, int, str]:
        """A sort key: the fewest moves first, then the least compute and memory moved."""
        held = [ledger.held_in_all(entry) for entry in self.leaving]
        return len(held), sum(percent for percent, _ in held), sum(size for _, size in held), self.node


class Movable:
    """Decides once per allocation whether it may leave; counts in `fixed` how many may not, by the reason."""

    def __init__(self, world: World, budgets: Budgets, priority: int, fixed: collections.Counter[str]) -> None:
        self._world = world
        self._budgets = budgets
        self._priority = priority
        self._fixed = fixed
        self._known: dict[str, RequestingPod | None] = {}

    def __call__(self, entry: Allocation) -> RequestingPod | None:
        """The pod with its request if it may be moved, else None."""
        if entry.id not in self._known:
            self._known[entry.id] = self._judge(entry)
        return self._known[entry.id]

    def unless(self, busy: Collection[str]) -> MayLeave:
        """The same, without the allocations with these ids, which the plan moves anyway."""
        return lambda entry: None if entry.id in busy else self(entry)

    def _judge(self, entry: Allocation) -> RequestingPod | None:
        if worlds.is_planned(entry):
            return None
        manifest = self._world.manifest(entry)
        if entry.is_hold or entry.reserved_until is not None or manifest is None:
            self._fixed["not known as a running pod"] += 1
            return None
        reason = evicting.protected(manifest, max_priority=self._priority) or self._budgets.forbids(manifest)
        if reason:
            self._fixed[reason] += 1
            return None
        if cpu_only.stands_for(entry):
            return RequestingPod(manifest, Request(()))
        if resizing.was_resized(manifest, entry):
            self._fixed["resized, and recreated as they were before"] += 1
            return None
        try:
            return RequestingPod.from_manifest(manifest)
        except errors.RequestError:
            self._fixed["a request that is invalid"] += 1
            return None


def options(
    world: World, asked: RequestingPod, may_leave: MayLeave, cpu_only_pods: CpuOnlyPods | None = None
) -> list[Departure]:
    """The ways to make room on each node, the cheapest first; none for requests with several demands, or none.

    cpu_only_pods: those that may leave a node with too little CPU or memory.
    """
    if len(asked.request.demands) != 1:
        return []
    return sorted(_options(world, asked, may_leave, cpu_only_pods), key=lambda option: option.price)


def _options(
    world: World, asked: RequestingPod, may_leave: MayLeave, cpu_only_pods: CpuOnlyPods | None
) -> Iterator[Departure]:
    judge = world.node_filter(asked.manifest)
    demand = asked.request.demands[0]
    for view in world.views.values():
        beside: tuple[Allocation, ...] = ()
        if judge(view.node.name) is not None:
            if cpu_only_pods is not None:
                beside = _crowding(world, asked, view.node.name, cpu_only_pods, may_leave)
            if not beside:
                continue
        by_gpu = []
        for gpu, used in view.gpus():
            ways = [*itertools.islice(_ways(gpu, used, demand, asked, may_leave), _MAX_WAYS)]
            if ways:
                by_gpu.append((len(ways[0]), gpu.index, gpu.uuid, ways))
        by_gpu.sort(key=lambda candidate: candidate[:2])
        for chosen in _sets(by_gpu, demand.gpus):
            uuids = tuple(uuid for _, _, uuid, _ in chosen)
            alternatives = chosen[0][3] if len(chosen) == 1 else [tuple(_together(way for *_, (way, *_) in chosen))]
            for leaving in ((*way, *beside) for way in alternatives):
                if 0 < len(leaving) <= MAX_MOVES:
                    yield Departure(view.node.name, uuids, leaving)


def _crowding(
    world: World, asked: RequestingPod, node: str, cpu_only_pods: CpuOnlyPods, may_leave: MayLeave
) -> tuple[Allocation, ...]:
    """The CPU-only pods without which the node could take the pod; none if it is not they who keep it away."""
    free = world.free(node)
    if free is None:
        return ()
    asks = world.host(asked.manifest)
    lacking = Host(max(0, asks.cpu_milli - free[0]), max(0, asks.memory_bytes - free[1]))
    if not lacking.cpu_milli and not lacking.memory_bytes and free[2] > 0:
        return ()
    there = [known for known in cpu_only_pods.on(node) if may_leave(known.entry) is not None]
    leaving = cpu_only.enough(there, lacking)
    if leaving is None:
        return ()
    undo = [world.remove(known.manifest, node, known.entry) for known in leaving]
    is_fit = world.node_filter(asked.manifest)(node) is None
    for back in reversed(undo):
        back()
    return tuple(known.entry for known in leaving) if is_fit else ()


_GpuTimetable = tuple[int, int, str, list[tuple[Allocation, ...]]]


def _sets(by_gpu: Sequence[_GpuTimetable], count: int) -> Iterator[tuple[_GpuTimetable, ...]]:
    """Sets of `count` cards, in the order of `by_gpu`: those with the fewest departures first."""
    if count == 1:
        return ((candidate,) for candidate in by_gpu)
    return itertools.islice(itertools.combinations(by_gpu, count), _MAX_SETS)


def _together(ways: Iterator[tuple[Allocation, ...]]) -> Iterator[Allocation]:
    yield from {entry.id: entry for way in ways for entry in way}.values()


def _ways(
    gpu: Gpu, used: ledger.GpuUse, demand: Demand, asked: RequestingPod, may_leave: MayLeave
) -> Iterator[tuple[Allocation, ...]]:
    """The smallest sets of holders without which the card would do, all of the same size."""

    def would_do(rest: ledger.GpuUse) -> bool:
        return filters.reject(filters.FilterInput(gpu, rest, demand.share, asked.request.constraints)) is None

    if not would_do(ledger.NOTHING):
        return
    movable = sorted(
        (holder for holder in used.holders if may_leave(holder)), key=lambda holder: ledger.held(holder, gpu.uuid)
    )
    for count in range(min(len(movable), MAX_MOVES) + 1):
        enough = False
        for departing in itertools.combinations(movable[:_MAX_ON_A_CARD], count):
            if would_do(_without(gpu, used, departing)):
                enough = True
                yield departing
        if enough:
            return


def _without(gpu: Gpu, used: ledger.GpuUse, gone: Sequence[Allocation]) -> ledger.GpuUse:
    ids = {entry.id for entry in gone}
    rest = ledger.NOTHING
    for entry in used.holders:
        if entry.id not in ids:
            rest = rest.plus(entry, *ledger.held(entry, gpu.uuid))
    return rest
