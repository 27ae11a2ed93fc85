"""Gang nodes: where the pods of a gang go if there is a choice: to as few nodes as possible, near each other.

Asked of the engine: on which node would all of them fit, if they were one pod; else half of them, and so on; and the
others on the same nodes, or on nodes with the same labels of topology. What comes of it is a preference: each pod is
placed on its node if it fits there, and else as any other pod. So no gang waits that would not wait without it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from gpushare import errors, ledger, policies
from gpushare.allocation import PodRef, peak
from gpushare.placement import Placement
from gpushare.request import Request
from webhook import event_loop
from webhook.pods.stored_pod import Pod
from webhook.store import draft, ledger_store

Asks = Sequence[tuple[Pod, Request]]

# Labels of Nodes that are near each other, the nearest first: an NVLink domain (NVIDIA's GPU Feature Discovery), a leaf
# of the network (NVIDIA's topograph; AWS), a rack, a zone.
LABELS: Final = (
    "nvidia.com/gpu.clique",
    "network.topology.nvidia.com/accelerator",
    "network.topology.nvidia.com/leaf",
    "topology.k8s.aws/network-node-layer-3",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
)
ELSEWHERE: Final = "is not near its gang"
_NAME: Final = "{pod}-{container}"


async def preferred(
    store: ledger_store.LedgerStore, asks: Asks, *, policy: str, beside: Collection[str] = ()
) -> dict[str, str]:
    """The node for each pod, by uid, as far as there is one.

    policy: of pods that name none. beside: the nodes of those of the gang that are placed already.
    """
    if len(asks) + len(beside) < 2 or not _are_alike(asks) or (asks[0][1].policy or policy) == policies.SPREAD:
        return {}
    tried = draft.Draft(store)
    nodes: dict[str, str] = {}
    used = list(beside)
    left = list(asks)
    try:
        while left:
            together = await _first_together(tried, left, policy, used)
            if together is None:
                break
            count, name = together
            nodes.update((pod.ref.uid, name) for pod, _ in left[:count])
            used.append(name)
            left = left[count:]
    finally:
        tried.end()
    return nodes


async def _first_together(tried: draft.Draft, left: Asks, policy: str, used: Sequence[str]) -> tuple[int, str] | None:
    """How many of the first fit on one node, and on which; taken in the draft. The most that fit somewhere near."""
    for near in _near(tried, used):
        unless = {view.node.name: ELSEWHERE for view in tried.views() if not near(view.node.name)}
        for count in _halves(min(len(left), _most(tried, left[0][1]))):
            if count == 1 and not used:
                return None  # no two of them fit on one node: nothing to prefer
            manifest, request = _as_one(left[:count])
            outcome = tried.chooser.place(manifest, request, policy=policy, instead=tried.instead, unless=unless)
            await event_loop.let_others_run()
            if isinstance(outcome, Placement):
                identity = f"preferred-{left[0][0].ref.uid}"
                entry = outcome.allocation(request, allocation_id=identity, pod=PodRef("", ""), reserved_until=None)
                tried.expect(manifest, outcome.node, identity)
                try:
                    await tried.commit(outcome.node, functools.partial(ledger.reserve, entry=entry))
                except errors.LedgerError:
                    return None
                return count, outcome.node
    return None


def _near(tried: draft.Draft, used: Sequence[str]) -> Iterator[Callable[[str], bool]]:
    """Which nodes will do: those that are used, then those near them, then any."""
    if used:
        yield frozenset(used).__contains__
        for key in LABELS:
            values = {value for name in used if (value := tried.chooser.labels(name).get(key))}
            if values:
                yield functools.partial(_has_label, tried, key, values)
    yield lambda _: True


def _has_label(tried: draft.Draft, key: str, values: Collection[str], name: str) -> bool:
    return tried.chooser.labels(name).get(key) in values


def _halves(count: int) -> Iterator[int]:
    while count > 1:
        yield count
        count = (count + 1) // 2
    yield 1


def _most(tried: draft.Draft, request: Request) -> int:
    """How many such pods the largest node could hold if nobody else was there."""
    percent = peak(request.demands, lambda demand: demand.gpus * demand.share.request_percent)
    largest = max((len(view.node.gpus) for view in tried.views()), default=0)
    return max(1, 100 * largest // max(1, percent))


def _are_alike(asks: Asks) -> bool:
    """Whether they may be asked for as one: on the same GPUs, by the same policy."""
    return len({(request.constraints, request.policy) for _, request in asks}) == 1


def _as_one(asks: Asks) -> tuple[dict[str, Any], Request]:
    """A pod with the containers of all of them."""
    first, request = asks[0]
    containers: list[Any] = []
    demands = []
    for number, (pod, asked) in enumerate(asks):
        spec = pod.manifest.get("spec") or {}
        containers += [
            {**container, "name": _NAME.format(pod=number, container=container["name"])}
            for container in itertools.chain(spec.get("containers") or (), spec.get("initContainers") or ())
        ]
        for demand in asked.demands:
            names = tuple(_NAME.format(pod=number, container=name) for name in demand.containers)
            demands.append(dataclasses.replace(demand, containers=names))
    spec = {**(first.manifest.get("spec") or {}), "containers": containers}
    spec.pop("initContainers", None)
    metadata = {**(first.manifest.get("metadata") or {}), "uid": ""}
    return {**first.manifest, "metadata": metadata, "spec": spec}, dataclasses.replace(request, demands=tuple(demands))
