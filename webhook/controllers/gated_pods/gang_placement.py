"""Gang placement: where the pods of a gang go, and how all of them get their shares, or none.

The pods should be on few nodes that are near each other. The placement engine looks for a node where all of them fit,
as if they were one pod, then half of them, and so on; the others go to nodes with the same topology labels. The result
is only a preference, so no gang waits because of it. Shares are tried on a scratch copy of the ledger, written as
tentative, and settled once all are written.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import itertools
import logging
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import errors, isolation, ledger, policies
from gpushare.allocation import Isolation, PodRef, peak
from gpushare.placement import Placement
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.controllers import pacing, queue
from webhook.controllers.gated_pods.waiting_units import AllocationIds
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store
from webhook.store.ledger_store import FilteredStore, ScratchStore
from webhook.store.reservation import Reservation

logger = logging.getLogger(__name__)

PodRequests = Sequence[tuple[Pod, Request]]
PreferredNodes = Mapping[str, str]  # UID of a pod -> node
_NO_PREFERENCE: PreferredNodes = types.MappingProxyType({})

# Labels of Nodes that are near each other, the nearest first: an NVLink domain (NVIDIA's GPU Feature Discovery), a leaf
# of the network (NVIDIA's topograph; AWS), a rack, a zone.
TOPOLOGY_LABELS: Final = (
    "nvidia.com/gpu.clique",
    "network.topology.nvidia.com/accelerator",
    "network.topology.nvidia.com/leaf",
    "topology.k8s.aws/network-node-layer-3",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
)
TOO_FAR: Final = "is not near its gang"
_NAME: Final = "{pod}-{container}"


@dataclasses.dataclass(frozen=True, slots=True)
class GangPlacement:
    """Places a gang on the ledger. `ignored` in its methods: allocations whose capacity the gang may use."""

    store: ledger_store.LedgerStore
    reservation: Reservation

    async def preferred(
        self, requests: PodRequests, ignored: AllocationIds, used_nodes: Collection[str]
    ) -> PreferredNodes:
        """Return a preferred node for each pod, by UID; `used_nodes`: where other members of the gang are already."""
        store = FilteredStore(self.store, ignored) if ignored else self.store
        return await preferred_nodes(store, requests, policy=self.reservation.policy, used_nodes=used_nodes)

    async def try_all(
        self, requests: PodRequests, ignored: AllocationIds, preferred: PreferredNodes = _NO_PREFERENCE
    ) -> tuple[Pod, Refusal] | None:
        """Try all pods on a scratch copy of the ledger; return the first that does not fit, and why, or None."""
        scratch = ScratchStore(FilteredStore(self.store, ignored) if ignored else self.store)
        reservation = self.reservation.on(scratch)
        try:
            for pod, request in requests:
                node = preferred.get(pod.ref.uid, "")
                outcome = await reservation.reserve(pod.manifest, request, pod.ref, preferred=node)
                if isinstance(outcome, Refusal):
                    return pod, outcome
        finally:
            scratch.close()
        return None

    async def refused_joiners(
        self, requests: PodRequests, joiners: PodRequests, ignored: AllocationIds
    ) -> dict[str, Refusal]:
        """Return by UID which joiners do not fit next to these pods, which do, and why."""
        scratch = ScratchStore(FilteredStore(self.store, ignored) if ignored else self.store)
        reservation = self.reservation.on(scratch)
        refused: dict[str, Refusal] = {}
        by_kind: dict[str, Refusal] = {}
        try:
            for pod, request in requests:
                await reservation.reserve(pod.manifest, request, pod.ref)
            for pod, request in joiners:
                kind = queue.kind(pod)
                outcome = by_kind.get(kind) or await reservation.reserve(pod.manifest, request, pod.ref)
                if isinstance(outcome, Refusal):
                    refused[pod.ref.uid] = by_kind[kind] = outcome
        finally:
            scratch.close()
        return refused

    async def reserve(
        self, requests: PodRequests, ignored: AllocationIds, preferred: PreferredNodes = _NO_PREFERENCE
    ) -> dict[str, mutation.Placed | Refusal]:
        """Write a tentative share for each pod; return by UID the share, or why there is none."""
        on = self.reservation.on(FilteredStore(self.store, ignored)) if ignored else self.reservation
        reservation = on.tentative()
        tasks: dict[str, asyncio.Task[mutation.Placed | Refusal]] = {}
        async with asyncio.TaskGroup() as group:
            for pod, request in requests:
                node = preferred.get(pod.ref.uid, "")
                share = reservation.reserve(pod.manifest, request, pod.ref, preferred=node)
                tasks[pod.ref.uid] = group.create_task(share)
                await asyncio.sleep(0)
        return {uid: task.result() for uid, task in tasks.items()}

    async def settle(self, shares: Iterable[mutation.Placed]) -> bool:
        """Make tentative shares permanent; return whether all of them are now."""
        by_node: dict[str, list[str]] = collections.defaultdict(list)
        for share in shares:
            by_node[share.node].append(share.allocation_id)
        writes = [
            self.store.commit(name, functools.partial(ledger.settle, ids=tuple(ids))) for name, ids in by_node.items()
        ]
        failed = [
            error for error in await asyncio.gather(*writes, return_exceptions=True) if isinstance(error, BaseException)
        ]
        for error in failed:
            if not isinstance(error, ledger_store.UnreachableError | errors.LedgerError):
                raise error
            logger.warning("Could not settle the shares of a gang", extra={"err": str(error)})
        return not failed


async def preferred_nodes(
    store: ledger_store.LedgerStore, requests: PodRequests, *, policy: str, used_nodes: Collection[str] = ()
) -> dict[str, str]:
    """Return a preferred node for each pod, by UID, as far as there is one. used_nodes: where members are already."""
    if (
        len(requests) + len(used_nodes) < 2
        or len({(request.constraints, request.policy, request.isolation) for _, request in requests})
        != 1  # they cannot be placed as one
        or (requests[0][1].policy or policy) == policies.SPREAD
    ):
        return {}
    scratch = ScratchStore(store)
    nodes: dict[str, str] = {}
    used = list(used_nodes)
    left = list(requests)
    try:
        while left:
            together = await _place_largest_group(scratch, left, policy, used)
            if together is None:
                break
            count, name = together
            nodes.update((pod.ref.uid, name) for pod, _ in left[:count])
            used.append(name)
            left = left[count:]
    finally:
        scratch.close()
    return nodes


async def _place_largest_group(
    scratch: ScratchStore, left: PodRequests, policy: str, used: Sequence[str]
) -> tuple[int, str] | None:
    """Place as many of the first pods as possible on one near node of the scratch copy; return how many, and where."""
    for is_near in _ever_farther(scratch, used):
        far = {view.node.name: TOO_FAR for view in scratch.views() if not is_near(view.node.name)}
        for count in _halves(min(len(left), _max_pods_per_node(scratch, left[0][1]))):
            if count == 1 and not used:
                return None  # no two of them fit on one node, so there is nothing to prefer
            manifest, request = _as_one(left[:count], scratch.chooser.kinds(left[0][1])[0])
            outcome = scratch.chooser.place(manifest, request, policy=policy, overrides=scratch.overrides, excluded=far)
            await pacing.let_others_run()
            if isinstance(outcome, Placement):
                identity = f"preferred-{left[0][0].ref.uid}"
                entry = outcome.allocation(request, allocation_id=identity, pod=PodRef("", ""), reserved_until=None)
                scratch.assume(manifest, request, outcome.node, identity)
                try:
                    await scratch.commit(outcome.node, functools.partial(ledger.reserve, entry=entry))
                except errors.LedgerError:
                    return None
                return count, outcome.node
    return None


def valid(pods: Iterable[Pod]) -> PodRequests:
    """Return the pods whose request is valid, with it, the largest first."""
    return largest_first((pod, pod.request) for pod in pods if isinstance(pod.request, Request))


def largest_first(requests: Iterable[tuple[Pod, Request]]) -> PodRequests:
    return sorted(requests, key=lambda asked: _size(asked[1]), reverse=True)


def _size(request: Request) -> tuple[int, int]:
    """Return compute and memory in bytes of all its GPUs; memory that is given as a part of a GPU does not count."""
    compute = peak(request.demands, lambda demand: demand.share.request_percent * demand.gpus)
    memory_bytes = peak(request.demands, lambda demand: (demand.share.memory.bytes or 0) * demand.gpus)
    return compute, memory_bytes


def _ever_farther(scratch: ScratchStore, used: Sequence[str]) -> Iterator[Callable[[str], bool]]:
    """Yield predicates of nodes: the used ones, then those near them, then any."""
    if used:
        yield frozenset(used).__contains__
        for key in TOPOLOGY_LABELS:
            values = {value for name in used if (value := scratch.chooser.labels(name).get(key))}
            if values:
                names, labels = (view.node.name for view in scratch.views()), scratch.chooser.labels
                yield {name for name in names if labels(name).get(key) in values}.__contains__
    yield lambda _: True


def _halves(count: int) -> Iterator[int]:
    while count > 1:
        yield count
        count = (count + 1) // 2
    yield 1


def _max_pods_per_node(scratch: ScratchStore, request: Request) -> int:
    """Return how many such pods the largest node could hold if it were empty."""
    percent = peak(request.demands, lambda demand: demand.gpus * demand.share.request_percent)
    largest = max((len(view.node.gpus) for view in scratch.views()), default=0)
    return max(1, 100 * largest // max(1, percent))


def _as_one(requests: PodRequests, kind: Isolation) -> tuple[dict[str, Any], Request]:
    """Return the pods as one pod that asks for this kind of isolation; `auto` could choose another for the sum."""
    first, request = requests[0]
    request = dataclasses.replace(isolation.resolved(request, kind), isolation=kind.value)
    containers: list[Any] = []
    demands = []
    for number, (pod, own) in enumerate(requests):
        spec = pod.manifest.get("spec") or {}
        containers += [
            {**container, "name": _NAME.format(pod=number, container=container["name"])}
            for container in itertools.chain(spec.get("containers") or (), spec.get("initContainers") or ())
        ]
        for demand in own.demands:
            names = tuple(_NAME.format(pod=number, container=name) for name in demand.containers)
            demands.append(dataclasses.replace(demand, containers=names))
    spec = {**(first.manifest.get("spec") or {}), "containers": containers}
    spec.pop("initContainers", None)
    metadata = {**(first.manifest.get("metadata") or {}), "uid": ""}
    return {**first.manifest, "metadata": metadata, "spec": spec}, dataclasses.replace(request, demands=tuple(demands))
