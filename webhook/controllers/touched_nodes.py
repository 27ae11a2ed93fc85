"""Touched nodes: which nodes a round has to check again, and with which pods. Pure.

A result for a node stays valid until its GPUNode changes, or a related pod: one that holds an allocation there, names
one, or says that it was placed there. A pod that is related to two nodes ties them together: both are checked.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from gpushare.gpunode import GpuNode
from webhook.pods.stored_pod import Pod

FEW: Final = 1000  # with so many changes, everything is checked
MAX_NODES: Final = 250  # checked in one round; takes about 25 ms


@dataclasses.dataclass(frozen=True, slots=True)
class Touched:
    """Nodes to check, related pods, names also of nodes that are gone, and deleted pods by allocation ID."""

    nodes: tuple[GpuNode, ...]
    pods: tuple[Pod, ...]
    names: frozenset[str]
    departed: Mapping[str, Pod] = dataclasses.field(default_factory=dict)


class TouchedNodes:
    """Collects changes of pods and nodes. has_more: whether changes are left after the last `collect`."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self.has_more = False
        self._nodes: dict[str, GpuNode] = {}
        self._where: dict[str, tuple[str, ...]] = {}  # UID of a holder, or ID of an allocation -> nodes
        self._pods: dict[str, Pod] = {}  # by UID
        self._arrival: dict[str, int] = {}  # arrival order, by UID
        self._count = 0
        self._claims: dict[str, dict[str, Pod]] = collections.defaultdict(dict)  # allocation ID -> pods by UID
        self._placed: dict[str, dict[str, Pod]] = collections.defaultdict(dict)  # node -> pods by UID
        self._departed: dict[str, Pod] = {}  # by allocation ID
        self._keys: set[str] = set()  # UIDs and IDs that have changed
        self._names: set[str] = set()
        self._last_names: frozenset[str] = frozenset()  # nodes of the last round, including nodes that are gone
        self._overflowed = False  # too much has changed to remember, so everything is checked

    def requeue(self) -> None:
        self._names |= self._last_names

    def update_pod(self, before: Pod | None, after: Pod | None) -> None:
        """Record that a pod was created (`before` is None), changed, or deleted (`after` is None)."""
        for pod in (before, after):
            if pod is None:
                continue
            uid, identity, node = _names(pod)
            if not self._overflowed:
                self._keys.update((uid, identity))
                self._names.add(node)
            for index, key in ((self._claims, identity), (self._placed, node)):
                if not key:
                    continue
                if pod is after:
                    index[key][uid] = pod
                elif index[key].pop(uid, None) is not None and not index[key]:
                    del index[key]
            if pod is after:
                self._pods[uid] = pod
                self._count += 1
                self._arrival.setdefault(uid, self._count)
            elif after is None or after.ref.uid != uid:
                self._pods.pop(uid, None)
                self._arrival.pop(uid, None)
                if identity:
                    self._departed[identity] = pod
                    if len(self._departed) > FEW:  # an unconfirmed reservation of the dropped pod expires
                        del self._departed[next(iter(self._departed))]
        if len(self._keys) > FEW + len(self._pods):
            # A replica that does not lead never collects, so this must not grow forever.
            self._overflowed = True
            self._keys = set()
            self._names = set(self._last_names)

    def placed_elsewhere(self, there: Collection[str]) -> list[Pod]:
        return [pod for name in self._placed if name not in there for pod in self._placed[name].values()]

    def collect(self, nodes: Iterable[GpuNode], also: Iterable[str] = ()) -> Touched:
        """Return what has changed since the last call, up to a limit, and `also` these nodes."""
        there = {node.name: node for node in nodes}
        changed = [name for name, node in there.items() if self._nodes.get(name) is not node]
        for name in (*changed[: self._max_nodes], *(self._nodes.keys() - there.keys())):
            self._keys.update(self._update_node(name, there.get(name)))
            self._names.add(name)
        for key in self._keys:
            self._names.update(self._where.get(key, ()))
        if self._overflowed:
            self._names |= there.keys()
        # Nodes are tied together only once all are indexed, so none is due before.
        due = [] if len(changed) > self._max_nodes else sorted(self._names)[: self._max_nodes]
        names = {*due, *also}
        self._overflowed, self._keys, self._names = False, set(), self._names - names
        self.has_more = bool(self._names)
        open_, pods = list(names), dict[str, Pod]()
        while open_:
            for pod in self._related_to(open_.pop()):
                uid, identity, node = _names(pod)
                if uid in pods:
                    continue
                pods[uid] = pod
                tied = {node, *self._where.get(uid, ()), *self._where.get(identity, ())} - names
                names |= tied
                open_ += tied
        self._last_names = frozenset(names)
        touched = tuple(there[name] for name in sorted(names) if name in there)
        # In order of arrival: the first pod that names an allocation gets it, and timestamps have a resolution of 1 s.
        came = tuple(pods[uid] for uid in sorted(pods, key=self._arrival.__getitem__))
        ids = (entry.id for node in touched for entry in node.allocations)
        departed = {identity: self._departed[identity] for identity in ids if identity in self._departed}
        return Touched(touched, came, self._last_names, departed)

    def _related_to(self, name: str) -> Iterator[Pod]:
        yield from self._placed.get(name, {}).values()
        node = self._nodes.get(name)
        for entry in node.allocations if node is not None else ():
            if entry.pod.uid in self._pods:
                yield self._pods[entry.pod.uid]
            yield from self._claims.get(entry.id, {}).values()

    def _update_node(self, name: str, after: GpuNode | None) -> set[str]:
        before = self._nodes.pop(name, None)
        had, has = _holders(before), _holders(after)
        for key in had - has:
            rest = tuple(node for node in self._where[key] if node != name)
            if rest:
                self._where[key] = rest
            else:
                del self._where[key]
                self._departed.pop(key, None)
        for key in has - had:
            self._where[key] = (*self._where.get(key, ()), name)
        if after is not None:
            self._nodes[name] = after
        return had | has


def _holders(node: GpuNode | None) -> set[str]:
    entries = node.allocations if node is not None else ()
    return {key for entry in entries for key in (entry.id, entry.pod.uid) if key}


def _names(pod: Pod) -> tuple[str, str, str]:
    """Return UID, allocation ID and node that the pod names; empty for none."""
    return pod.ref.uid, pod.allocation_id, pod.placed_on
