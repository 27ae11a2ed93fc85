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
from gpushare.whatif.world import RequestingPod, World

MAX_MOVES: Final = 8  # for one share
_MAX_ON_A_GPU: Final = 10  # movable pods per GPU that are considered, those that are cheapest to place again
_MAX_WAYS: Final = 4  # equally small sets of pods per GPU
_MAX_SETS: Final = 8  # sets of GPUs per node, for shares on several
_MAX_FOR_HOST: Final = 3  # more pods that leave a node for its CPU and memory
_MAX_FOR_HOST_TRIED: Final = 8  # pods of a node, those with the most CPU; and as many with the most memory
_CPU_ONLY: Final = "cpu-only-"  # prefix of the IDs of allocations that represent CPU-only pods


@dataclasses.dataclass(frozen=True, slots=True)
class Mover:
    """A pod that may leave its node, with the CPU and memory that it holds.

    shape: the number of its request; cost: of placing it again, in GPUs. Only chains need them.
    """

    node: str
    entry: Allocation
    host: Host
    shape: int = -1
    cost: float = 0.0

    @property
    def size(self) -> tuple[int, int]:
        """The pod's compute (percent) and memory (bytes), summed over its GPUs."""
        return ledger.held_in_all(self.entry)


@dataclasses.dataclass(frozen=True, slots=True)
class Departure:
    """An option: the pods that leave a node, so that a share fits on these GPUs, which are cordoned meanwhile."""

    node: str
    uuids: tuple[str, ...]
    leaving: tuple[Mover, ...]


class Movable:
    """Decides once per allocation whether it may leave, and counts what the moves so far took from each budget.

    fixed: counts the reasons against. moves_cpu_only: CPU-only pods may be moved, too.
    """

    def __init__(
        self,
        world: World,
        budgets: Budgets,
        priority: int = evicting.SYSTEM_PRIORITY,
        fixed: collections.Counter[str] | None = None,
        spent: collections.Counter[tuple[str, str]] | None = None,
        *,
        moves_cpu_only: bool = False,
    ) -> None:
        self._world = world
        self._budgets = budgets
        self._priority = priority
        self.fixed = collections.Counter() if fixed is None else fixed
        self._spent = collections.Counter() if spent is None else spent
        self._known: dict[str, RequestingPod | None] = {}
        self._movers: dict[str, Mover] = {}  # by allocation ID
        self._cpu_only: dict[str, list[Mover]] = collections.defaultdict(list)
        for node, manifest in world.pods() if moves_cpu_only else ():
            if node in world.views and is_cpu_only(manifest):
                amounts = pod_requests.requests(manifest, running=True)
                host = Host(amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0))
                holder = PodRef(*pod.namespaced_name(manifest), pod.uid(manifest))
                entry = Allocation(f"{_CPU_ONLY}{holder.uid or holder}", holder, ())
                self._cpu_only[node].append(Mover(node, entry, host))

    def __call__(self, entry: Allocation) -> RequestingPod | None:
        """Return the pod with its request if it may be moved, else None."""
        if entry.id not in self._known:
            answer = None if worlds.is_planned(entry) else self._check(entry)
            if isinstance(answer, str):
                self.fixed[answer] += 1
            self._known[entry.id] = answer if isinstance(answer, RequestingPod) else None
        return self._known[entry.id]

    def on(self, node: str, busy: Collection[str] = ()) -> list[Mover]:
        """Return the movable pods on a node's usable GPUs. busy: IDs of allocations to leave out."""
        known = self._world.views[node].node
        usable = {gpu.uuid for gpu in known.gpus if gpu.takes_shares}
        movers = []
        for entry in known.allocations:
            if entry.id in busy or usable.isdisjoint(entry.gpu_uuids) or (asked := self(entry)) is None:
                continue
            if entry.id not in self._movers:
                self._movers[entry.id] = Mover(node, entry, self._world.host(worlds.successor(asked.manifest)))
            movers.append(self._movers[entry.id])
        return movers

    def cpu_only(self, node: str, busy: Collection[str] = ()) -> list[Mover]:
        """Return the movable CPU-only pods that are still on a node, those with the most CPU first."""
        there = [mover for mover in self._cpu_only.get(node, ()) if self._world.has_pod(mover.entry)]
        movable = [mover for mover in there if mover.entry.id not in busy and self(mover.entry) is not None]
        return sorted(movable, key=lambda mover: (-mover.host.cpu_milli, -mover.host.memory_bytes, mover.entry.id))

    def has_budget(self, manifest: pod.PodJson) -> bool:
        """Whether the budgets allow one more move of this pod."""
        return not self._budgets.against(manifest, self._spent)

    def spend(self, manifest: pod.PodJson) -> Callable[[], None]:
        """Take a move of this pod from its budgets; return the undo."""
        keys = self._budgets.of_pod(manifest)
        self._spent.update(keys)
        return lambda: self._spent.subtract(keys)

    def _check(self, entry: Allocation) -> RequestingPod | str:
        """Return the pod with its request, or why it may not be moved."""
        manifest = self._world.manifest(entry)
        if entry.is_backfill_reservation or entry.reserved_until is not None or manifest is None:
            return "not known as a running pod"
        if reason := evicting.protected(manifest, max_priority=self._priority) or self._budgets.forbids(manifest):
            return reason
        if stands_for_cpu_only(entry):
            return RequestingPod(manifest, Request(()))
        if resizing.was_resized(manifest, entry):
            return "resized, and would be recreated with their original size"
        try:
            return RequestingPod.from_manifest(manifest)
        except errors.RequestError:
            return "an invalid request"


def is_cpu_only(manifest: pod.PodJson) -> bool:
    """Whether a pod uses no device: no share, no GPU of another device plugin, no resource claim."""
    if pod.asks_for_share(manifest) or (manifest.get("spec") or {}).get("resourceClaims"):
        return False
    return not any("/" in name for name in pod_requests.requests(manifest))


def stands_for_cpu_only(entry: Allocation) -> bool:
    """Whether this allocation represents a CPU-only pod instead of a ledger entry."""
    return entry.id.startswith(_CPU_ONLY)


def options(world: World, asked: RequestingPod, may_leave: Movable, busy: Collection[str] = ()) -> list[Departure]:
    """Return the options to make room on each node: the fewest moves first, then the least compute and memory moved.

    There are none for requests without exactly one demand. busy: IDs of allocations that the plan moves anyway.
    """
    if len(asked.request.demands) != 1:
        return []
    fits, has_other_room = world.node_filter(asked.manifest), world.node_filter(asked.manifest, ignores_host=True)
    host = world.host(asked.manifest)
    found: list[Departure] = []

    def price(option: Departure) -> tuple[int, int, int, str]:
        percents, sizes = zip(*(mover.size for mover in option.leaving), strict=True)
        return len(option.leaving), sum(percents), sum(sizes), option.node

    for name in world.views:
        if fits(name) is None or has_other_room(name) is None or world.room(name).pods < 1:
            movers = may_leave.on(name, busy)
            found += departures(world, may_leave, name, (asked.request, host), movers, MAX_MOVES, busy=busy)
    return sorted(found, key=price)


def departures(
    world: World,
    may_leave: Movable,
    node: str,
    asked: tuple[Request, Host],
    movers: Sequence[Mover],
    most: int,
    *,
    busy: Collection[str] = (),
) -> Iterator[Departure]:
    """Yield the sets of at most `most` pods without which a pod with one demand has room on the node.

    movers: the pods with a share that may leave it; CPU-only pods other than `busy` may, too.
    """
    (request, host), view, room = asked, world.views[node], world.room(node)
    request = isolation.variants(request, world.profile.isolation)[-1]
    count = request.demands[0].gpus
    by_gpu = [(gpu.uuid, ways) for gpu, used in view.gpus() if (ways := _ways(gpu, used, request, movers, most))]
    by_gpu.sort(key=lambda candidate: (len(candidate[1][0]), sum(mover.cost for mover in candidate[1][0])))
    lacking = host.cpu_milli - room.cpu_milli, host.memory_bytes - room.memory_bytes
    lacks = max(lacking) > 0 or room.pods < 1
    # Pods that moved to another GPU of the node would still use its CPU.
    usable = tuple(gpu.uuid for gpu in view.node.gpus if gpu.takes_shares) if lacks else ()
    for chosen in itertools.islice(itertools.combinations(by_gpu, count), None if count == 1 else _MAX_SETS):
        uuids = tuple(uuid for uuid, _ in chosen)
        for way in chosen[0][1] if count == 1 else [_union(ways[0] for _, ways in chosen)]:
            leaving: tuple[Mover, ...] | None = way
            if lacks and not (way and _holds(way, *lacking)):
                rest = [mover for mover in movers if mover not in way]
                more = (_with_more(way, others, lacking) for others in (may_leave.cpu_only(node, busy), rest))
                leaving = next(filter(None, more), None)
            if leaving and len(leaving) <= most:
                yield Departure(node, usable or uuids, leaving)


def _ways(
    gpu: Gpu, used: ledger.GpuUse, request: Request, movers: Iterable[Mover], most: int
) -> list[tuple[Mover, ...]]:
    """Return the smallest sets of pods without which the share fits on the GPU; an empty set if it fits now."""
    share = request.demands[0].share
    held = {mover.entry.id: ledger.held(mover.entry, gpu.uuid) for mover in movers if gpu.uuid in mover.entry.gpu_uuids}
    there = sorted(
        (mover for mover in movers if mover.entry.id in held), key=lambda mover: (mover.cost, held[mover.entry.id])
    )[:_MAX_ON_A_GPU]
    lacking = (
        used.request_percent + share.request_percent - 100,
        used.memory_bytes + share.memory.on(gpu.memory_bytes) - gpu.memory_bytes,
    )

    def has_room(gone: Iterable[Mover]) -> bool:
        amounts = [held[mover.entry.id] for mover in gone]
        enough_compute = sum(percent for percent, _ in amounts) >= lacking[0]
        return enough_compute and sum(size for _, size in amounts) >= lacking[1]

    def fits(gone: Sequence[Mover]) -> bool:
        if not has_room(gone):
            return False
        ids, rest = {mover.entry.id for mover in gone}, ledger.NOTHING
        for entry in used.holders:
            if entry.id not in ids:
                rest = rest.plus(entry, *ledger.held(entry, gpu.uuid))
        return filters.reject(filters.FilterInput(gpu, rest, share, request.constraints)) is None

    empty = filters.FilterInput(gpu, ledger.NOTHING, share, request.constraints)
    if not has_room(there) or filters.reject(empty) is not None:
        return []
    return [*itertools.islice(_smallest_sets(there, range(most + 1), fits), _MAX_WAYS)]


def _union(ways: Iterable[Sequence[Mover]]) -> tuple[Mover, ...]:
    return tuple({mover.entry.id: mover for way in ways for mover in way}.values())


def _with_more(
    leaving: tuple[Mover, ...], others: Sequence[Mover], lacking: tuple[float, float]
) -> tuple[Mover, ...] | None:
    """Return the pods with the fewest others such that they hold so much CPU and memory; None if there are none."""
    by_cpu = sorted(others, key=lambda mover: -mover.host.cpu_milli)[:_MAX_FOR_HOST_TRIED]
    by_memory = sorted(others, key=lambda mover: -mover.host.memory_bytes)[:_MAX_FOR_HOST_TRIED]
    tried, sizes = _union([by_cpu, by_memory]), range(1, _MAX_FOR_HOST + 1)
    sets = _smallest_sets(tried, sizes, lambda more: _holds((*leaving, *more), *lacking))

    def cost(more: Sequence[Mover]) -> tuple[float, int]:
        return sum(mover.cost for mover in more), sum(mover.host.cpu_milli for mover in more)

    more = min(sets, key=cost, default=None)
    return None if more is None else (*leaving, *more)


def _holds(movers: Iterable[Mover], cpu_milli: float, memory_bytes: float) -> bool:
    hosts = [mover.host for mover in movers]
    enough_cpu = sum(host.cpu_milli for host in hosts) >= cpu_milli
    return enough_cpu and sum(host.memory_bytes for host in hosts) >= memory_bytes


def _smallest_sets(
    movers: Sequence[Mover], sizes: Iterable[int], enough: Callable[[Sequence[Mover]], bool]
) -> Iterator[tuple[Mover, ...]]:
    """Yield the subsets for which `enough` holds, all of the first of these sizes that has any."""
    for size in sizes:
        found = False
        for chosen in itertools.combinations(movers, size):
            if enough(chosen):
                found = True
                yield chosen
        if found:
            return
