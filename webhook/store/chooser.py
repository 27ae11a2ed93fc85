"""Chooser: which node and which GPUs a pod gets. One engine for whoever asks: admissions, gated pods, gangs, dry fits.

It keeps a `Fleet` true to a ledger, and to the CPU, memory and pods that the nodes have room for, so that a node that
the pod cannot run on is not proposed in the first place. For a while it can also be shown other views of some nodes: a
draft of the ledger is node_filterd by the same prices as the ledger itself.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

from gpushare import pod
from gpushare.allocation import PodRef
from gpushare.mix import NO_HOST, Host, Mix
from gpushare.nodefilters import PodKey as NodeShape
from gpushare.nodefilters import SchedulerCache, pod_requests, share_resources
from gpushare.placement import NodeView, Placement, exclusive_gpus
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.pod import PodJson
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.store.unbindable import NO_AVOIDED, Avoided

Views = Mapping[str, NodeView]  # by name of the node

NO_OVERRIDES: Final[Views] = types.MappingProxyType({})
NO_EXCLUSIONS: Final[Mapping[str, str]] = types.MappingProxyType({})
_NO_LABELS: Final[Mapping[str, str]] = types.MappingProxyType({})


class Chooser:
    """Not for threads.

    view: a node of the ledger as it is now. key: by which key the scheduler cache counts a pod, if it does. avoided:
    nodes that are not for a pod, whatever is free there. left: nodes that are only taken now where no other will do.
    bound: a namespace's bound on exclusive GPUs.
    """

    def __init__(
        self,
        view: Callable[[str], NodeView | None],
        cache: SchedulerCache,
        key: Callable[[PodJson], Hashable],
        avoided: Callable[[PodJson], Avoided] = lambda _: NO_AVOIDED,
        *,
        deprioritized: Callable[[], Callable[[str], bool] | None] = lambda: None,
        bound: Callable[[str], exclusive_gpus.ExclusiveBound | None] = lambda _: None,
    ) -> None:
        self.avoided = avoided
        self._deprioritized = deprioritized
        self._bound = bound
        self._view = view
        self._cache = cache
        self._key = key
        self._fleet = Fleet()
        self._changed: set[str] = set()  # nodes that the fleet has not been shown as they are
        self._shown_overrides: dict[str, NodeView] = {}  # what it was shown last in place of what is
        cache.on_change(self.mark_changed)

    def mark_changed(self, name: str) -> None:
        """Something has changed on this node: its GPUs, or what it has room for."""
        self._changed.add(name)

    def update_some(self, most: int) -> bool:
        """Do some of what the next placement would do first, on so many nodes; return whether there is more of it."""
        changed = sorted(self._changed - self._shown_overrides.keys())
        for name in changed[:most]:
            self._show_node(name, self._view(name))
            self._changed.discard(name)
        return len(changed) > most

    @property
    def mix(self) -> Mix:
        """What it prices by."""
        return self._fleet.mix

    def learn(self, mix: Mix) -> None:
        """Price by this mix from now on; takes some tens of milliseconds."""
        self._fleet.learn(mix)

    async def learn_in_thread(self, mix: Mix) -> None:
        """The same, while others are placed by what was known before."""
        self._fleet.learn(mix, await asyncio.to_thread(self._fleet.study, mix))

    def place(
        self,
        manifest: PodJson,
        request: Request,
        *,
        policy: str,
        overrides: Views = NO_OVERRIDES,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Placement | Refusal:
        """Where the pod would go now; by `policy` if the request names none. Nothing is changed.

        overrides: views of some nodes, for this once; the same objects for as long as nothing has changed on them.
        excluded: nodes that are not for this pod, and why, as the rest of a sentence.
        """
        self._show(overrides)
        shape, relations = share_resources.of(manifest, request)
        key = self._key(manifest)
        # Where the pod itself takes room already, that is no reason against it; only the cache can tell it apart.
        host = NO_HOST if key is not None and self._cache.pod_info(key) is not None else _host(shape)
        node_filter = self._cache.judge(shape, relations, itself=key)
        avoided = self.avoided(manifest)
        excluded = {**avoided.blocked, **excluded}
        reason_against: Callable[[str], str | None] = node_filter
        fits: Callable[[str], bool] = node_filter.fits
        if excluded:
            reason_against = lambda name: excluded.get(name) or node_filter(name)  # noqa: E731
            fits = lambda name: name not in excluded and node_filter.fits(name)  # noqa: E731
        contended = is_deprioritized = self._deprioritized()
        if avoided.last_resort:
            is_deprioritized = lambda name: (  # noqa: E731
                name in avoided.last_resort or (contended is not None and contended(name))
            )

        def attempt(request: Request) -> Placement | Refusal:
            if is_deprioritized is not None:
                outcome = self._fleet.place(
                    request,
                    host=host,
                    policy=policy,
                    unfit=lambda name: _DEPRIORITIZED if is_deprioritized(name) else reason_against(name),
                )
                if isinstance(outcome, Placement):
                    return outcome
            return self._fleet.place(request, host=host, policy=policy, unfit=reason_against, fits=fits)

        bound = self._bound_on(manifest, request)
        return exclusive_gpus.place(request, bound, self._fleet.exclusive_views() if bound else (), attempt)

    def place_on(
        self, view: NodeView, manifest: PodJson, request: Request, *, policy: str, overrides: Views = NO_OVERRIDES
    ) -> Placement | Refusal:
        """The GPUs that the pod gets on this node as it is given here, by the same choice as `place`'s."""
        reason_against, bound, views = self.node_filter(manifest), self._bound_on(manifest, request), [view]
        if bound is not None:
            self._show(overrides)
            views += [other for other in self._fleet.exclusive_views() if other.node.name != view.node.name]
        return exclusive_gpus.place(
            request, bound, views, lambda tried: self._fleet.place_on(view, tried, policy=policy, unfit=reason_against)
        )

    def exceeds_bound(self, asks: Sequence[tuple[PodRef, Request]]) -> bool:
        """Whether holding GPUs for these pods of one namespace exceeds its bound on exclusive GPUs."""
        asked = [(ref, request) for ref, request in asks if request.constraints.exclusion]
        bound = self._bound(asked[0][0].namespace) if asked else None
        if bound is None:
            return False
        self._show(NO_OVERRIDES)
        uids = {ref.uid for ref, _ in asked}
        held = exclusive_gpus.held_gpus(bound.namespace, self._fleet.exclusive_views(), but=uids)
        return len(held) + sum(exclusive_gpus.gpus_of(request) for _, request in asked) > bound.most_gpus

    def _bound_on(self, manifest: PodJson, request: Request) -> exclusive_gpus.ExclusiveBound | None:
        return self._bound(pod.namespaced_name(manifest)[0]) if request.constraints.exclusion else None

    def hostname(self, node: str) -> str:
        """The value of the node's hostname label."""
        node_spec = self._cache.machine(node)
        return (node_spec.hostname if node_spec is not None else None) or node

    def labels(self, node: str) -> Mapping[str, str]:
        """The labels of the Node; empty if it is unknown."""
        node_spec = self._cache.machine(node)
        return node_spec.labels if node_spec is not None else _NO_LABELS

    def node_filter(self, manifest: PodJson) -> Callable[[str], str | None]:
        """A node_filter of nodes for one pod: why it cannot run there, as the rest of a sentence, or None."""
        node_filter = self._cache.judge(*share_resources.of(manifest), itself=self._key(manifest))
        blocked = self.avoided(manifest).blocked
        return (lambda name: blocked.get(name) or node_filter(name)) if blocked else node_filter

    def _show(self, overrides: Views) -> None:
        if overrides or self._shown_overrides:
            self._changed.update(name for name in self._shown_overrides if name not in overrides)
            self._changed.update(
                name for name, view in overrides.items() if self._shown_overrides.get(name) is not view
            )
            self._shown_overrides = dict(overrides)
        for name in sorted(self._changed):
            self._show_node(name, overrides.get(name) or self._view(name))
        self._changed.clear()

    def _show_node(self, name: str, view: NodeView | None) -> None:
        if view is None:
            self._fleet.remove(name)
        else:
            self._fleet.update(view, room=self._room(name))

    def _room(self, name: str) -> Room:
        return Room(*(self._cache.room(name) or ()))


_DEPRIORITIZED: Final = "is left to others"


def _host(shape: NodeShape) -> Host:
    amounts = dict(shape.amounts)
    return Host(amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0))
