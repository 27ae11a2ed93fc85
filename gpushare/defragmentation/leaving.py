"""Leaving: which pods may leave their nodes, and which of them would have to for a share to fit there.

CPU-only pods are pods without any device that hold CPU or memory on a node with GPUs that a share could use. They are
not in the ledger; an allocation without GPUs represents each of them.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from gpushare import errors, isolation, ledger, pod, resizing
from gpushare.allocation import Allocation, PodRef
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.gpunode import Gpu
from gpushare.mix import Host
from gpushare.nodefilters import pod_requests
from gpushare.placement import filters
from gpushare.request import Request
from gpushare.whatif import world as worlds
from gpushare.whatif.requesting_pod import RequestingPod, successor
from gpushare.whatif.world import World

MAX_MOVES: Final = 8  # for one share
_MAX_ON_A_GPU: Final = 10  # movable pods per GPU that are considered, those that are cheapest to place again
_MAX_WAYS: Final = 4  # equally small sets of pods per GPU
_MAX_SETS: Final = 8  # sets of GPUs per node, for shares on several
_MAX_FOR_HOST: Final = 3  # more pods that leave a node for its CPU and memory
_MAX_FOR_HOST_TRIED: Final = 8  # pods of a node, those with the most CPU; and as many with the most memory
_CPU_ONLY: Final = "cpu-only-"  # prefix of the IDs of allocations that represent CPU-only pods
Shape = tuple[Request, Host]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Mover:
    """A pod that may leave its node; `fresh` replaces it, and needs `host`."""

    node: str
    entry: Allocation
    manifest: pod.PodJson
    fresh: RequestingPod
    host: Host

    @property
    def is_cpu_only(self) -> bool:
        """Whether the pod has no share."""
        return stands_for_cpu_only(self.entry)

    @property
    def percent(self) -> int:
        """The pod's compute, summed over its GPUs."""
        return ledger.held_in_all(self.entry)[0]


Set = tuple[Mover, ...]
Cost = Callable[[Iterable[Mover]], float]  # of placing these pods again, in GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class Departure:
    """An option: the pods that leave a node, so that a share fits on these GPUs, which are cordoned meanwhile."""

    node: str
    uuids: tuple[str, ...]
    leaving: Set


class Movable:
    """Decides which pods may leave, and counts what the moves so far took from each budget.

    with_cpu_only: CPU-only pods may leave, too.
    """

    def __init__(self, world: World, budgets: Budgets, *, with_cpu_only: bool = False) -> None:
        self.world = world
        self._budgets = budgets
        self._max_priority = evicting.SYSTEM_PRIORITY
        self._spent: collections.Counter[tuple[str, str]] = collections.Counter()
        self._known: dict[str, Mover | None] = {}  # by ID of the allocation
        self._fixed: dict[str, str] = {}  # why it stays, by ID of the allocation
        self._cpu_only: dict[str, list[Allocation]] = collections.defaultdict(list)
        for node, manifest in world.pods() if with_cpu_only else ():
            if node in world.views and is_cpu_only(manifest):
                holder = PodRef(*pod.namespaced_name(manifest), pod.uid(manifest))
                self._cpu_only[node].append(Allocation(f"{_CPU_ONLY}{holder.uid or holder}", holder, ()))

    def protect_above(self, priority: int) -> None:
        """Let pods of a higher priority stay from now on."""
        self._max_priority = priority
        self._known.clear()

    @property
    def fixed(self) -> tuple[tuple[str, int], ...]:
        """The reasons why pods stay, with their number."""
        return tuple(collections.Counter(self._fixed.values()).most_common())

    def get(self, node: str, entry: Allocation) -> Mover | None:
        """Return the pod of an allocation if it may leave; None for pods that stay or have moved already."""
        if entry.id not in self._known:
            answer = None if worlds.is_planned(entry) else self._check(node, entry)
            if isinstance(answer, str):
                self._fixed[entry.id] = answer
            self._known[entry.id] = answer if isinstance(answer, Mover) else None
        return self._known[entry.id]

    def on(self, node: str, busy: Collection[str] = ()) -> list[Mover]:
        """Return the movable pods on a node's usable GPUs. busy: IDs of allocations to leave out."""
        known = self.world.views[node].node
        usable = {gpu.uuid for gpu in known.gpus if gpu.takes_shares}
        held = (entry for entry in known.allocations if entry.id not in busy and not usable.isdisjoint(entry.gpu_uuids))
        return [mover for entry in held if (mover := self.get(node, entry))]

    def cpu_only(self, node: str, busy: Collection[str] = ()) -> list[Mover]:
        """Return the movable CPU-only pods that are still on a node, those with the most CPU first."""
        there = (entry for entry in self._cpu_only.get(node, ()) if entry.id not in busy and self.world.has_pod(entry))
        movable = [mover for entry in there if (mover := self.get(node, entry))]
        return sorted(movable, key=lambda mover: (-mover.host.cpu_milli, -mover.host.memory_bytes, mover.entry.id))

    def has_budget(self, mover: Mover) -> bool:
        """Whether the budgets allow one more move of this pod."""
        return not self._budgets.against(mover.manifest, self._spent)

    def spend(self, mover: Mover) -> Callable[[], None]:
        """Take a move of this pod from its budgets; return the undo."""
        keys = self._budgets.of_pod(mover.manifest)
        self._spent.update(keys)
        return lambda: self._spent.subtract(keys)

    def _check(self, node: str, entry: Allocation) -> Mover | str:
        """Return the pod, or why it may not leave."""
        manifest = self.world.manifest(entry)
        if entry.is_backfill_reservation or entry.reserved_until is not None or manifest is None:
            return "not known as a running pod"
        if reason := evicting.protected(manifest, max_priority=self._max_priority) or self._budgets.forbids(manifest):
            return reason
        fresh = successor(manifest)
        if stands_for_cpu_only(entry):
            amounts = pod_requests.requests(manifest, running=True)
            host = Host(amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0))
            return Mover(node, entry, manifest, RequestingPod(fresh, Request(())), host)
        if resizing.was_resized(manifest, entry):
            return "resized, and would be recreated with their original size"
        try:
            request = RequestingPod.from_manifest(manifest).request
        except errors.RequestError:
            return "an invalid request"
        return Mover(node, entry, manifest, RequestingPod(fresh, request), self.world.host(fresh))


def is_cpu_only(manifest: pod.PodJson) -> bool:
    """Whether a pod uses no device: no share, no GPU of another device plugin, no resource claim."""
    if pod.asks_for_share(manifest) or (manifest.get("spec") or {}).get("resourceClaims"):
        return False
    return not any("/" in name for name in pod_requests.requests(manifest))


def stands_for_cpu_only(entry: Allocation) -> bool:
    """Whether this allocation represents a CPU-only pod instead of a ledger entry."""
    return entry.id.startswith(_CPU_ONLY)


def options(movable: Movable, asked: RequestingPod, busy: Collection[str] = ()) -> list[Departure]:
    """Return the options to make room on each node: the fewest moves first, then the least compute and memory moved.

    busy: IDs of allocations that the plan moves anyway.
    """
    world, shape = movable.world, (asked.request, movable.world.host(asked.manifest))
    fits, has_other_room = world.node_filter(asked.manifest), world.node_filter(asked.manifest, ignores_host=True)

    def price(option: Departure) -> tuple[int, int, int, str]:
        percents, sizes = zip(*(ledger.held_in_all(mover.entry) for mover in option.leaving), strict=True)
        return len(option.leaving), sum(percents), sum(sizes), option.node

    found: list[Departure] = []
    for name in world.views:
        if fits(name) is None or has_other_room(name) is None or world.room(name).pods < 1:
            found += departures(movable, name, shape, movable.on(name, busy), MAX_MOVES, busy=busy)
    return sorted(dict.fromkeys(found), key=price)


def departures(
    movable: Movable,
    node: str,
    shape: Shape,
    movers: Sequence[Mover],
    most: int,
    *,
    busy: Collection[str] = (),
    cost: Cost = lambda _: 0.0,
) -> Iterator[Departure]:
    """Yield the sets of at most `most` pods without which the pod has room on the node; none if it has several demands.

    movers: the pods with a share that may leave it; CPU-only pods other than `busy` may, too.
    """
    request, host = shape
    kinds = isolation.variants(request, movable.world.profile.isolation) if len(request.demands) == 1 else ()
    for variant in kinds:
        yield from _departures(movable, node, (variant, host), movers, most, busy=busy, cost=cost)


def _departures(
    movable: Movable, node: str, shape: Shape, movers: Sequence[Mover], most: int, *, busy: Collection[str], cost: Cost
) -> Iterator[Departure]:
    (request, host), view, room = shape, movable.world.views[node], movable.world.room(node)
    count = request.demands[0].gpus
    by_gpu = [(gpu.uuid, ways) for gpu, used in view.gpus() if (ways := _ways(gpu, used, request, movers, most, cost))]
    by_gpu.sort(key=lambda candidate: (len(candidate[1][0]), cost(candidate[1][0])))
    lacking = host.cpu_milli - room.cpu_milli, host.memory_bytes - room.memory_bytes
    lacks = max(lacking) > 0 or room.pods < 1
    # Pods that moved to another GPU of the node would still use its CPU.
    usable = tuple(gpu.uuid for gpu in view.node.gpus if gpu.takes_shares) if lacks else ()
    for chosen in itertools.islice(itertools.combinations(by_gpu, count), None if count == 1 else _MAX_SETS):
        uuids = tuple(uuid for uuid, _ in chosen)
        for way in chosen[0][1] if count == 1 else [_union(ways[0] for _, ways in chosen)]:
            leaving: Set | None = way
            if lacks and not (way and _frees(way, lacking)):
                rest = [mover for mover in movers if mover not in way]
                more = (_with_more(way, others, lacking, cost) for others in (movable.cpu_only(node, busy), rest))
                leaving = next(filter(None, more), None)
            if leaving and len(leaving) <= most:
                yield Departure(node, usable or uuids, leaving)


def _ways(gpu: Gpu, used: ledger.GpuUse, request: Request, movers: Iterable[Mover], most: int, cost: Cost) -> list[Set]:
    """Return the smallest sets of pods without which the share fits on the GPU; an empty set if it fits now."""
    share = request.demands[0].share
    held = {mover: ledger.held(mover.entry, gpu.uuid) for mover in movers if gpu.uuid in mover.entry.gpu_uuids}
    there = sorted(held, key=lambda mover: (cost([mover]), held[mover]))[:_MAX_ON_A_GPU]
    asks = filters.FilterInput(gpu, used, share, request.constraints)
    lacking = asks.compute.asked - asks.compute.free, asks.memory.asked - asks.memory.free

    def fits(gone: Sequence[Mover]) -> bool:
        if not _covers([held[mover] for mover in gone], lacking):  # much faster than the filters
            return False
        # Loans stay: pods that stay may have them.
        ids, rest = {mover.entry.id for mover in gone}, ledger.GpuUse(0, used.lent_bytes, (), used.lent_bytes)
        for entry in used.holders:
            if entry.id not in ids:
                rest = rest.plus(entry, *ledger.held(entry, gpu.uuid))
        return filters.reject(dataclasses.replace(asks, used=rest)) is None

    sets = _smallest_sets(there, range(most + 1), fits) if fits(there) else ()
    return [*itertools.islice(sets, _MAX_WAYS)]


def _union(ways: Iterable[Sequence[Mover]]) -> Set:
    return tuple(dict.fromkeys(itertools.chain.from_iterable(ways)))


def _with_more(leaving: Set, others: Sequence[Mover], lacking: tuple[float, float], cost: Cost) -> Set | None:
    """Return the pods with the fewest others such that they hold so much CPU and memory; None if there are none."""
    by_cpu = sorted(others, key=lambda mover: -mover.host.cpu_milli)[:_MAX_FOR_HOST_TRIED]
    by_memory = sorted(others, key=lambda mover: -mover.host.memory_bytes)[:_MAX_FOR_HOST_TRIED]
    sizes = range(1, _MAX_FOR_HOST + 1)
    sets = _smallest_sets(_union([by_cpu, by_memory]), sizes, lambda more: _frees((*leaving, *more), lacking))
    more = min(sets, key=lambda more: (cost(more), sum(mover.host.cpu_milli for mover in more)), default=None)
    return None if more is None else (*leaving, *more)


def _frees(movers: Set, lacking: tuple[float, float]) -> bool:
    return _covers([(mover.host.cpu_milli, mover.host.memory_bytes) for mover in movers], lacking)


def _covers(amounts: Sequence[tuple[int, int]], lacking: tuple[float, float]) -> bool:
    return all(sum(amount[kind] for amount in amounts) >= lacking[kind] for kind in (0, 1))


def _smallest_sets(movers: Sequence[Mover], sizes: Iterable[int], enough: Callable[[Set], bool]) -> Iterator[Set]:
    """Yield the subsets for which `enough` holds, all of the first of these sizes that has any."""
    for size in sizes:
        found = filter(enough, itertools.combinations(movers, size))
        for first in found:
            yield first
            yield from found
            return
