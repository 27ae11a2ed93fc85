"""Chooser: chooses node and GPUs of a pod, for admissions, gated pods, gangs and dry runs.

It keeps a `Fleet` up to date with a ledger, and with the CPU, memory and pods that nodes have room for, so that only
nodes where the pod can run are proposed. Single calls can override the views of some nodes, so that a scratch copy of
the ledger is placed on with the same costs as the ledger itself. `WorkloadMix` says when it has to learn the mix again.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

from gpushare import contract, isolation, pod
from gpushare.allocation import Isolation, PodRef
from gpushare.mix import FEW_PODS, NO_HOST, Host, Mix, RequestClass, classes_of
from gpushare.nodefilters import SchedulerCache, pod_requests, share_resources
from gpushare.placement import NodeView, Placement, exclusive_gpus
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.placement.worth import Worth
from gpushare.pod import PodJson
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.pods.stored_pod import Pod
from webhook.store.avoided_nodes import NO_AVOIDED, Avoided

Views = Mapping[str, NodeView]  # by node

NO_OVERRIDES: Final[Views] = types.MappingProxyType({})
NO_EXCLUSIONS: Final[Mapping[str, str]] = types.MappingProxyType({})
_NO_LABELS: Final[Mapping[str, str]] = types.MappingProxyType({})


@dataclasses.dataclass(eq=False)
class Chooser:
    """The placement engine of a ledger; not thread-safe.

    key: returns the key under which the scheduler cache counts a pod, or None. avoided: nodes that a pod must not go
    to. deprioritized: nodes that are used only if no other fits. bound: a namespace's bound on exclusive GPUs.
    isolation: of pods that name none, one of `request.DEFAULT_ISOLATIONS`.
    """

    view: Callable[[str], NodeView | None]
    cache: SchedulerCache
    key: Callable[[PodJson], Hashable]
    avoided: Callable[[PodJson], Avoided] = lambda _: NO_AVOIDED
    _: dataclasses.KW_ONLY
    deprioritized: Callable[[], Callable[[str], bool] | None] = lambda: None
    bound: Callable[[str], exclusive_gpus.ExclusiveBound | None] = lambda _: None
    isolation: str = isolation.DEFAULT

    def __post_init__(self) -> None:
        self._fleet = Fleet()
        self._changed: set[str] = set()  # nodes whose update the fleet lacks
        self._shown_overrides: dict[str, NodeView] = {}  # overrides that the fleet was shown last
        self._requested: dict[str, Host] = {}  # shown node with GPUs -> by its pods, but for those of daemons
        self._every = NO_HOST  # the sum of that
        self.cache.on_change(self.mark_changed)

    def mark_changed(self, name: str) -> None:
        self._changed.add(name)

    def update_some(self, most: int) -> bool:
        """Update up to `most` changed nodes ahead of the next placement; return whether more are left."""
        changed = sorted(self._changed - self._shown_overrides.keys())
        for name in changed[:most]:
            self._show_node(name, self.view(name))
            self._changed.discard(name)
        return len(changed) > most

    @property
    def mix(self) -> Mix:
        return self._fleet.mix

    def learn(self, mix: Mix) -> None:
        self._show(NO_OVERRIDES)  # the mix names the cluster's GPUs
        self._fleet.learn(self._with_others(mix))

    async def study(self, mix: Mix) -> Worth:
        """Return the tables of a mix for `use`, computed in a thread; placements go on with the former mix."""
        return await asyncio.to_thread(self._fleet.study, self._with_others(mix))

    def _with_others(self, mix: Mix) -> Mix:
        """Return a new mix with the CPU and memory of pods that are not in it, but for those of daemons."""
        if mix.gpus or not mix.weights:
            return mix
        shared, every = mix.requested, self._every
        cpu, memory = every.cpu_milli - shared.cpu_milli, every.memory_bytes - shared.memory_bytes
        return dataclasses.replace(mix, others=Host(max(0, cpu), max(0, memory)))

    def use(self, studied: Worth) -> None:
        self._fleet.learn(studied.mix, studied)

    def place(
        self,
        manifest: PodJson,
        request: Request,
        *,
        policy: str,
        overrides: Views = NO_OVERRIDES,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Placement | Refusal:
        """Return where the pod would go now, by `policy` if the request names none. Changes nothing.

        overrides: views of some nodes for this call; pass the same objects as long as the nodes have not changed.
        excluded: nodes that are not for this pod, and why, as the rest of a sentence.
        """
        self._show(overrides)
        shape, relations = share_resources.key_and_affinity(manifest, request)
        key = self.key(manifest)
        # A node that already counts the pod itself must not be rejected for that; only the cache can tell.
        host = NO_HOST if key is not None and self.cache.pod_info(key) is not None else _host(shape.amounts)
        node_filter = self.cache.node_filter(shape, relations, itself=key)
        avoided = self.avoided(manifest)
        excluded = {**avoided.blocked, **excluded}
        reason_against: Callable[[str], str | None] = node_filter
        if excluded:
            reason_against = lambda name: excluded.get(name) or node_filter(name)  # noqa: E731
        contended = is_deprioritized = self.deprioritized()
        if avoided.last_resort:
            is_deprioritized = lambda name: (  # noqa: E731
                name in avoided.last_resort or (contended is not None and contended(name))
            )

        def attempt(request: Request) -> Placement | Refusal:
            return self._fleet.place(
                request,
                host=host,
                policy=policy,
                unfit=reason_against,
                misfits=lambda: node_filter.misfits() | self.cache.rows(excluded),
                is_deprioritized=is_deprioritized,
            )

        bound = self._bound_on(manifest, request)
        views = self._fleet.exclusive_views() if bound else ()
        by_kind = lambda tried: exclusive_gpus.place(tried, bound, views, attempt)  # noqa: E731
        return isolation.place(request, self.isolation, by_kind, offers=self._fleet.offers)

    def kinds(self, request: Request) -> tuple[Isolation, ...]:
        """Return the kinds of isolation that placement tries for this request, in this order."""
        return isolation.kinds(request, self.isolation)

    def place_on(
        self, view: NodeView, manifest: PodJson, request: Request, *, policy: str, overrides: Views = NO_OVERRIDES
    ) -> Placement | Refusal:
        """Return the GPUs that the pod would get on this node, by the same choice as `place`."""
        reason_against, bound, views = self.node_filter(manifest), self._bound_on(manifest, request), [view]
        if bound is not None:
            self._show(overrides)
            views += [other for other in self._fleet.exclusive_views() if other.node.name != view.node.name]

        def attempt(request: Request) -> Placement | Refusal:
            return self._fleet.place_on(view, request, policy=policy, unfit=reason_against)

        return isolation.place(
            request, self.isolation, lambda tried: exclusive_gpus.place(tried, bound, views, attempt)
        )

    def exceeds_bound(self, asks: Sequence[tuple[PodRef, Request]]) -> bool:
        """Whether reserving GPUs for these pods of one namespace exceeds its bound on exclusive GPUs."""
        asked = [(ref, request) for ref, request in asks if request.constraints.exclusion]
        bound = self.bound(asked[0][0].namespace) if asked else None
        if bound is None:
            return False
        self._show(NO_OVERRIDES)
        uids = {ref.uid for ref, _ in asked}
        held = exclusive_gpus.held_gpus(bound.namespace, self._fleet.exclusive_views(), but=uids)
        return len(held) + sum(exclusive_gpus.gpus_of(request) for _, request in asked) > bound.most_gpus

    def _bound_on(self, manifest: PodJson, request: Request) -> exclusive_gpus.ExclusiveBound | None:
        return self.bound(pod.namespaced_name(manifest)[0]) if request.constraints.exclusion else None

    def hostname(self, node: str) -> str:
        node_spec = self.cache.node_spec(node)
        return (node_spec.hostname if node_spec is not None else None) or node

    def labels(self, node: str) -> Mapping[str, str]:
        node_spec = self.cache.node_spec(node)
        return node_spec.labels if node_spec is not None else _NO_LABELS

    def node_filter(self, manifest: PodJson) -> Callable[[str], str | None]:
        """Return a function that says why the pod cannot run on a node, as the rest of a sentence, or None."""
        node_filter = self.cache.node_filter(*share_resources.key_and_affinity(manifest), itself=self.key(manifest))
        blocked = self.avoided(manifest).blocked
        return (lambda name: blocked.get(name) or node_filter(name)) if blocked else node_filter

    def _show(self, overrides: Views) -> None:
        if overrides or self._shown_overrides:
            self._changed.update(name for name in self._shown_overrides if name not in overrides)
            self._changed.update(name for name, new in overrides.items() if self._shown_overrides.get(name) is not new)
            self._shown_overrides = dict(overrides)
        for name in sorted(self._changed):
            self._show_node(name, overrides.get(name) or self.view(name))
        self._changed.clear()

    def _show_node(self, name: str, view: NodeView | None) -> None:
        if view is None:
            self._fleet.remove(name)
        else:
            self._fleet.update(view, room=Room(*(self.cache.room(name) or ())), row=self.cache.row(name))
        self._count(name, has_gpus=view is not None and bool(view.node.gpus))
        self.cache.count_offer(name)

    def _count(self, name: str, *, has_gpus: bool) -> None:
        before, after = self._requested.pop(name, NO_HOST), NO_HOST
        if has_gpus:
            info = self.cache.info(name)
            after = self._requested[name] = _host(
                (resource, info.amounts.get(resource, 0) - info.daemon_amounts.get(resource, 0))
                for resource in (pod_requests.CPU, pod_requests.MEMORY)
            )
        self._every = Host(
            self._every.cpu_milli + after.cpu_milli - before.cpu_milli,
            self._every.memory_bytes + after.memory_bytes - before.memory_bytes,
        )


FEWEST: Final = FEW_PODS
PART: Final = 3  # one third
MIN_PERCENT: Final = 800  # of a GPU: eight whole ones

Asks = tuple[RequestClass, ...]  # of one pod


class WorkloadMix:
    """Counts the requests of the pods that have a share now.

    A lesson is due when a third of these pods have changed since the last one, and FEWEST at least; or a third of their
    compute, and MIN_PERCENT at least, because a few pods may be most of a cluster. Then `due` is called, and again with
    every change until `snapshot`.
    """

    def __init__(self, due: Callable[[], object] = lambda: None) -> None:
        self._due = due
        self._counts: collections.Counter[RequestClass] = collections.Counter()
        self._pods = 0
        self._percent = 0  # requested compute, 100 per GPU
        self._turnover = self._turnover_percent = 0  # since the last lesson
        self._known = self._known_percent = 0  # at the last lesson

    def change(self, before: Asks, after: Asks) -> None:
        """Record that a pod's request has changed; empty while it has no share."""
        if before == after:
            return
        for asked in before:
            self._counts[asked] -= 1
            if not self._counts[asked]:
                del self._counts[asked]
        self._counts.update(after)
        self._pods += bool(after) - bool(before)
        self._percent += _percent(after) - _percent(before)
        self._turnover += 1
        self._turnover_percent += max(_percent(before), _percent(after))
        if self.is_due:
            self._due()

    @property
    def is_due(self) -> bool:
        by_pods = self._turnover >= max(FEWEST, self._known // PART)
        by_compute = self._turnover_percent >= max(MIN_PERCENT, self._known_percent // PART)
        return by_pods or by_compute

    def snapshot(self) -> Mix:
        self._turnover = 0
        self._known = self._pods
        self._turnover_percent = 0
        self._known_percent = self._percent
        return Mix.from_counts(self._counts, pods=self._pods)


def _percent(asks: Asks) -> int:
    return sum(asked.gpus * asked.request_percent for asked in asks)


def asks_of(read: Pod, amounts: Iterable[tuple[str, int]]) -> Asks:
    """Return the classes of a pod's request, with the isolation that it was given; empty if the request is invalid.

    amounts: milli-CPUs, bytes … that the pod takes.
    """
    if isinstance(read.request, str):
        return ()
    given = read.annotations.get(contract.ISOLATION_GIVEN)
    request = isolation.resolved(read.request, Isolation(given)) if given in set(Isolation) else read.request
    return tuple(classes_of(request, _host(amounts)))


def _host(amounts: Iterable[tuple[str, int]]) -> Host:
    there = dict(amounts)
    return Host(there.get(pod_requests.CPU, 0), there.get(pod_requests.MEMORY, 0))
