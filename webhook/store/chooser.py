"""Chooser: which node and which GPUs a pod gets. One engine for whoever asks: admissions, gated pods, gangs, dry fits.

It keeps a `Fleet` true to a ledger, and to the CPU, memory and pods that the nodes have room for, so that a node that
the pod cannot run on is not proposed in the first place. For a while it can also be shown other views of some nodes: a
draft of the ledger is judged by the same prices as the ledger itself.
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
from webhook.store.unbindable import NOTHING, Avoided

Views = Mapping[str, NodeView]  # by name of the node

AS_IT_IS: Final[Views] = types.MappingProxyType({})
NOWHERE: Final[Mapping[str, str]] = types.MappingProxyType({})
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
        avoided: Callable[[PodJson], Avoided] = lambda _: NOTHING,
        *,
        left: Callable[[], Callable[[str], bool] | None] = lambda: None,
        bound: Callable[[str], exclusive_gpus.ExclusiveBound | None] = lambda _: None,
    ) -> None:
        self.avoided = avoided
        self._left = left
        self._bound = bound
        self._view = view
        self._cache = cache
        self._key = key
        self._fleet = Fleet()
        self._moved: set[str] = set()  # nodes that the fleet has not been shown as they are
        self._instead: dict[str, NodeView] = {}  # what it was shown last in place of what is
        cache.on_change(self.moved)

    def moved(self, name: str) -> None:
        """Something has changed on this node: its GPUs, or what it has room for."""
        self._moved.add(name)

    def show_some(self, most: int) -> bool:
        """Do some of what the next placement would do first, on so many nodes; return whether there is more of it."""
        moved = sorted(self._moved - self._instead.keys())
        for name in moved[:most]:
            self._show_node(name, self._view(name))
            self._moved.discard(name)
        return len(moved) > most

    @property
    def mix(self) -> Mix:
        """What it prices by."""
        return self._fleet.mix

    def learn(self, mix: Mix) -> None:
        """Price by this mix from now on; takes some tens of milliseconds."""
        self._fleet.learn(mix)

    async def learn_aside(self, mix: Mix) -> None:
        """The same, while others are placed by what was known before."""
        self._fleet.learn(mix, await asyncio.to_thread(self._fleet.study, mix))

    def place(
        self,
        manifest: PodJson,
        request: Request,
        *,
        policy: str,
        instead: Views = AS_IT_IS,
        unless: Mapping[str, str] = NOWHERE,
    ) -> Placement | Refusal:
        """Where the pod would go now; by `policy` if the request names none. Nothing is changed.

        instead: views of some nodes, for this once; the same objects for as long as nothing has changed on them.
        unless: nodes that are not for this pod, and why, as the rest of a sentence.
        """
        self._show(instead)
        shape, relations = share_resources.key_and_affinity(manifest, request)
        key = self._key(manifest)
        # Where the pod itself takes room already, that is no reason against it; only the cache can tell it apart.
        host = NO_HOST if key is not None and self._cache.pod_info(key) is not None else _host(shape)
        judge = self._cache.node_filter(shape, relations, itself=key)
        avoided = self.avoided(manifest)
        unless = {**avoided.barred, **unless}
        unfit: Callable[[str], str | None] = judge
        fits: Callable[[str], bool] = judge.fits
        if unless:
            unfit = lambda name: unless.get(name) or judge(name)  # noqa: E731
            fits = lambda name: name not in unless and judge.fits(name)  # noqa: E731
        among = is_left = self._left()
        if avoided.last:
            is_left = lambda name: name in avoided.last or (among is not None and among(name))  # noqa: E731

        def attempt(request: Request) -> Placement | Refusal:
            if is_left is not None:
                outcome = self._fleet.place(
                    request, host=host, policy=policy, unfit=lambda name: _LEFT if is_left(name) else unfit(name)
                )
                if isinstance(outcome, Placement):
                    return outcome
            return self._fleet.place(request, host=host, policy=policy, unfit=unfit, fits=fits)

        bound = self._bound_on(manifest, request)
        return exclusive_gpus.place(request, bound, self._fleet.exclusive_views() if bound else (), attempt)

    def place_on(
        self, view: NodeView, manifest: PodJson, request: Request, *, policy: str, instead: Views = AS_IT_IS
    ) -> Placement | Refusal:
        """The GPUs that the pod gets on this node as it is given here, by the same choice as `place`'s."""
        unfit, bound, views = self.unfit(manifest), self._bound_on(manifest, request), [view]
        if bound is not None:
            self._show(instead)
            views += [other for other in self._fleet.exclusive_views() if other.node.name != view.node.name]
        return exclusive_gpus.place(
            request, bound, views, lambda tried: self._fleet.place_on(view, tried, policy=policy, unfit=unfit)
        )

    def exceeds_bound(self, asks: Sequence[tuple[PodRef, Request]]) -> bool:
        """Whether holding GPUs for these pods of one namespace exceeds its bound on exclusive GPUs."""
        asked = [(ref, request) for ref, request in asks if request.constraints.exclusion]
        bound = self._bound(asked[0][0].namespace) if asked else None
        if bound is None:
            return False
        self._show(AS_IT_IS)
        uids = {ref.uid for ref, _ in asked}
        held = exclusive_gpus.held_gpus(bound.namespace, self._fleet.exclusive_views(), but=uids)
        return len(held) + sum(exclusive_gpus.gpus_of(request) for _, request in asked) > bound.most_gpus

    def _bound_on(self, manifest: PodJson, request: Request) -> exclusive_gpus.ExclusiveBound | None:
        return self._bound(pod.namespaced_name(manifest)[0]) if request.constraints.exclusion else None

    def hostname(self, node: str) -> str:
        """The value of the node's hostname label."""
        machine = self._cache.node_spec(node)
        return (machine.hostname if machine is not None else None) or node

    def labels(self, node: str) -> Mapping[str, str]:
        """The labels of the Node; empty if it is unknown."""
        machine = self._cache.node_spec(node)
        return machine.labels if machine is not None else _NO_LABELS

    def unfit(self, manifest: PodJson) -> Callable[[str], str | None]:
        """A judge of nodes for one pod: why it cannot run there, as the rest of a sentence, or None."""
        judge = self._cache.node_filter(*share_resources.key_and_affinity(manifest), itself=self._key(manifest))
        barred = self.avoided(manifest).barred
        return (lambda name: barred.get(name) or judge(name)) if barred else judge

    def _show(self, instead: Views) -> None:
        if instead or self._instead:
            self._moved.update(name for name in self._instead if name not in instead)
            self._moved.update(name for name, view in instead.items() if self._instead.get(name) is not view)
            self._instead = dict(instead)
        for name in sorted(self._moved):
            self._show_node(name, instead.get(name) or self._view(name))
        self._moved.clear()

    def _show_node(self, name: str, view: NodeView | None) -> None:
        if view is None:
            self._fleet.remove(name)
        else:
            self._fleet.update(view, room=self._room(name))

    def _room(self, name: str) -> Room:
        return Room(*(self._cache.room(name) or ()))


_LEFT: Final = "is left to others"


def _host(shape: NodeShape) -> Host:
    amounts = dict(shape.amounts)
    return Host(amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0))
