"""Leaving: the pods that would have to leave their GPUs for a share to fit there, in order of cost."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from gpushare import errors, ledger, pod, resizing
from gpushare.allocation import Allocation, PodRef
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.gpunode import Gpu
from gpushare.mix import Host
from gpushare.nodefilters import pod_requests
from gpushare.placement import filters
from gpushare.request import Demand, Request
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World

_PREFIX: Final = "cpu-only-"  # of the IDs of these allocations


@dataclasses.dataclass(frozen=True, slots=True)
class CpuOnlyPod:
    """A pod that may be moved; `host`: the CPU and memory that it holds."""

    node: str
    manifest: pod.PodJson
    entry: Allocation
    host: Host


def is_cpu_only(manifest: pod.PodJson) -> bool:
    """Whether a pod uses no device: no share, no GPU of another device plugin, no resource claim."""
    if pod.asks_for_share(manifest) or (manifest.get("spec") or {}).get("resourceClaims"):
        return False
    return not any("/" in name for name in pod_requests.requests(manifest))


def stands_for(entry: Allocation) -> bool:
    """Whether this allocation represents a CPU-only pod instead of a ledger entry."""
    return entry.id.startswith(_PREFIX)


class CpuOnlyPods:
    """The CPU-only pods of a world, by their node, which has GPUs."""

    def __init__(self, world: World, may_leave: Callable[[Allocation], RequestingPod | None]) -> None:
        self._world = world
        self._may_leave = may_leave
        self._on: dict[str, list[CpuOnlyPod]] = collections.defaultdict(list)
        for node, manifest in world.pods():
            if node not in world.views or not is_cpu_only(manifest):
                continue
            amounts = pod_requests.requests(manifest, running=True)
            host = Host(amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0))
            holder = PodRef(*pod.namespaced_name(manifest), pod.uid(manifest))
            entry = Allocation(f"{_PREFIX}{holder.uid or holder}", holder, ())
            self._on[node].append(CpuOnlyPod(node, manifest, entry, host))

    def on(self, node: str) -> list[CpuOnlyPod]:
        """Return the movable pods that are still on a node, those with the most CPU first."""
        movable = [
            there
            for there in self._on.get(node, ())
            if self._world.has_pod(there.entry) and self._may_leave(there.entry) is not None
        ]
        return sorted(movable, key=lambda there: (-there.host.cpu_milli, -there.host.memory_bytes, there.entry.id))


MAX_MOVES: Final = 8  # for one share
_MAX_ON_A_GPU: Final = 10  # movable pods per GPU that are considered, the smallest first
_MAX_WAYS: Final = 4  # equally small sets of pods per GPU
_MAX_SETS: Final = 8  # sets of GPUs per node, for shares on several
_MAX_CPU_ONLY: Final = 3  # CPU-only pods that leave a node for one share
_MAX_CPU_ONLY_TRIED: Final = 8  # CPU-only pods of a node, those with the most CPU; and as many with the most memory
MayLeave = Callable[[Allocation], RequestingPod | None]
_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True, slots=True)
class Departure:
    """An option: the allocations that leave these GPUs."""

    node: str
    uuids: tuple[str, ...]
    leaving: tuple[Allocation, ...]

    @property
    def price(self) -> tuple[int, int, int, str]:
        """A sort key: the fewest moves first, then the least compute and memory moved."""
        held = [ledger.held_in_all(entry) for entry in self.leaving]
        return len(held), sum(percent for percent, _ in held), sum(size for _, size in held), self.node


class Movable:
    """Decides once per allocation whether it may leave; counts the reasons against in `fixed`."""

    def __init__(self, world: World, budgets: Budgets, priority: int, fixed: collections.Counter[str]) -> None:
        self._world = world
        self._budgets = budgets
        self._priority = priority
        self._fixed = fixed
        self._known: dict[str, RequestingPod | None] = {}

    def __call__(self, entry: Allocation) -> RequestingPod | None:
        """Return the pod with its request if it may be moved, else None."""
        if entry.id not in self._known:
            self._known[entry.id] = self._check(entry)
        return self._known[entry.id]

    def excluding(self, busy: Collection[str]) -> MayLeave:
        """Return the same function, except that these allocations may not leave, because the plan moves them anyway."""
        return lambda entry: None if entry.id in busy else self(entry)

    def _check(self, entry: Allocation) -> RequestingPod | None:
        if worlds.is_planned(entry):
            return None
        manifest = self._world.manifest(entry)
        if entry.is_backfill_reservation or entry.reserved_until is not None or manifest is None:
            self._fixed["not known as a running pod"] += 1
            return None
        reason = evicting.protected(manifest, max_priority=self._priority) or self._budgets.forbids(manifest)
        if reason:
            self._fixed[reason] += 1
            return None
        if stands_for(entry):
            return RequestingPod(manifest, Request(()))
        if resizing.was_resized(manifest, entry):
            self._fixed["resized, and would be recreated with their original size"] += 1
            return None
        try:
            return RequestingPod.from_manifest(manifest)
        except errors.RequestError:
            self._fixed["an invalid request"] += 1
            return None


def options(
    world: World, asked: RequestingPod, may_leave: MayLeave, cpu_only_pods: CpuOnlyPods | None = None
) -> list[Departure]:
    """Return the options to make room on each node, the cheapest first; none for requests without exactly one demand.

    cpu_only_pods: CPU-only pods that may leave a node that lacks CPU or memory.
    """
    if len(asked.request.demands) != 1:
        return []
    return sorted(_options(world, asked, may_leave, cpu_only_pods), key=lambda option: option.price)


def _options(
    world: World, asked: RequestingPod, may_leave: MayLeave, cpu_only_pods: CpuOnlyPods | None
) -> Iterator[Departure]:
    node_filter = world.node_filter(asked.manifest)
    demand = asked.request.demands[0]
    for view in world.views.values():
        cpu_only_leaving: tuple[Allocation, ...] = ()
        if node_filter(view.node.name) is not None:
            if cpu_only_pods is not None:
                cpu_only_leaving = _crowding(world, asked, view.node.name, cpu_only_pods, may_leave)
            if not cpu_only_leaving:
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
            for leaving in ((*way, *cpu_only_leaving) for way in alternatives):
                if 0 < len(leaving) <= MAX_MOVES:
                    yield Departure(view.node.name, uuids, leaving)


def _crowding(
    world: World, asked: RequestingPod, node: str, cpu_only_pods: CpuOnlyPods, may_leave: MayLeave
) -> tuple[Allocation, ...]:
    """Return the CPU-only pods without which the node could take the pod; none if other reasons prevent that."""
    free = world.free(node)
    if free is None:
        return ()
    asks = world.host(asked.manifest)
    lacking = Host(max(0, asks.cpu_milli - free[0]), max(0, asks.memory_bytes - free[1]))
    if not lacking.cpu_milli and not lacking.memory_bytes and free[2] > 0:
        return ()
    there = [known for known in cpu_only_pods.on(node) if may_leave(known.entry) is not None]
    leaving = enough(there, lacking)
    if leaving is None:
        return ()
    undo = [world.remove(known.manifest, node, known.entry) for known in leaving]
    is_fit = world.node_filter(asked.manifest)(node) is None
    for back in reversed(undo):
        back()
    return tuple(known.entry for known in leaving) if is_fit else ()


def smallest_sets(
    items: Sequence[_Item], sizes: Iterable[int], enough: Callable[[Sequence[_Item]], bool]
) -> Iterator[tuple[_Item, ...]]:
    """Yield the subsets for which `enough` holds, all of the first of these sizes that has any."""
    for size in sizes:
        found = False
        for chosen in itertools.combinations(items, size):
            if enough(chosen):
                found = True
                yield chosen
        if found:
            return


def covers(hosts: Iterable[Host], cpu_milli: float, memory_bytes: float) -> bool:
    """Whether these amounts add up to so much CPU and memory."""
    hosts = list(hosts)
    return (
        sum(host.cpu_milli for host in hosts) >= cpu_milli and sum(host.memory_bytes for host in hosts) >= memory_bytes
    )


def enough(there: Sequence[CpuOnlyPod], lacking: Host) -> tuple[CpuOnlyPod, ...] | None:
    """Return the fewest of a node's CPU-only pods that hold so much, with the least CPU; None if none do."""
    by_memory = sorted(there, key=lambda known: -known.host.memory_bytes)
    tried = {known.entry.id: known for known in (*there[:_MAX_CPU_ONLY_TRIED], *by_memory[:_MAX_CPU_ONLY_TRIED])}
    sets = smallest_sets(
        [*tried.values()],
        range(1, _MAX_CPU_ONLY + 1),
        lambda leaving: covers((known.host for known in leaving), lacking.cpu_milli, lacking.memory_bytes),
    )
    return min(sets, key=lambda leaving: sum(known.host.cpu_milli for known in leaving), default=None)


_GpuWays = tuple[int, int, str, list[tuple[Allocation, ...]]]


def _sets(by_gpu: Sequence[_GpuWays], count: int) -> Iterator[tuple[_GpuWays, ...]]:
    """Yield sets of `count` GPUs in the order of `by_gpu`: those with the fewest departures first."""
    if count == 1:
        return ((candidate,) for candidate in by_gpu)
    return itertools.islice(itertools.combinations(by_gpu, count), _MAX_SETS)


def _together(ways: Iterator[tuple[Allocation, ...]]) -> Iterator[Allocation]:
    yield from {entry.id: entry for way in ways for entry in way}.values()


def _ways(
    gpu: Gpu, used: ledger.GpuUse, demand: Demand, asked: RequestingPod, may_leave: MayLeave
) -> Iterator[tuple[Allocation, ...]]:
    """Yield the smallest sets of holders without which the share fits on the GPU."""

    def fits(rest: ledger.GpuUse) -> bool:
        return filters.reject(filters.FilterInput(gpu, rest, demand.share, asked.request.constraints)) is None

    if not fits(ledger.NOTHING):
        return
    movable = sorted(
        (holder for holder in used.holders if may_leave(holder)), key=lambda holder: ledger.held(holder, gpu.uuid)
    )
    yield from smallest_sets(
        movable[:_MAX_ON_A_GPU], range(MAX_MOVES + 1), lambda departing: fits(_without(gpu, used, departing))
    )


def _without(gpu: Gpu, used: ledger.GpuUse, gone: Sequence[Allocation]) -> ledger.GpuUse:
    ids = {entry.id for entry in gone}
    rest = ledger.NOTHING
    for entry in used.holders:
        if entry.id not in ids:
            rest = rest.plus(entry, *ledger.held(entry, gpu.uuid))
    return rest
