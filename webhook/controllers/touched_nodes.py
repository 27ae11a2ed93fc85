"""Touched nodes: which nodes to look at again, and with which pods: a few of very many. Pure.

What was found out about a node holds until its GPUNode changes, or a pod that has to do with it: one that holds
something there, names an allocation there, or says that it was placed there. Who has to do with two nodes ties them
together: both are looked at then.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from gpushare.gpunode import GpuNode
from webhook.pods.stored_pod import Pod

FEW: Final = 1000  # of so many changes everything may be looked at instead
MAX_NODES: Final = 250  # that are looked at together: some 25 ms


@dataclasses.dataclass(frozen=True, slots=True)
class Touched:
    """What to look at: nodes, every pod that has to do with one of them, and the names, of nodes that are gone too.

    departed: deleted pods that named an allocation on one of them, by its id.
    """

    nodes: tuple[GpuNode, ...]
    pods: tuple[Pod, ...]
    names: frozenset[str]
    departed: Mapping[str, Pod] = dataclasses.field(default_factory=dict)


class TouchedNodes:
    """Told of pods one by one, and shown all nodes, of which it takes so many at a time.

    has_more: something has changed that was not taken yet.
    """

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self.has_more = False
        self._nodes: dict[str, GpuNode] = {}
        self._where: dict[str, tuple[str, ...]] = {}  # uid of a holder, or id of an allocation -> nodes
        self._pods: dict[str, Pod] = {}  # by uid
        self._arrival: dict[str, int] = {}  # by uid: the how manieth it was to come
        self._count = 0
        self._claims: dict[str, dict[str, Pod]] = collections.defaultdict(dict)  # id -> by uid
        self._placed: dict[str, dict[str, Pod]] = collections.defaultdict(dict)  # node -> by uid
        self._departed: dict[str, Pod] = {}  # by the id that they named
        self._keys: set[str] = set()  # uids and ids of what has changed
        self._names: set[str] = set()
        self._last_names: frozenset[str] = frozenset()  # names of the last time, also of nodes that are gone
        self._overflowed = False  # what has changed: then everything has

    def requeue(self) -> None:
        """Not everybody has made something of what was told last: it is told again."""
        self._names |= self._last_names

    def update_pod(self, before: Pod | None, after: Pod | None) -> None:
        """A pod came (`before` is None), changed, or went (`after` is None)."""
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
                    if len(self._departed) > FEW:  # what the oldest one has left reserved, if anything, lapses
                        del self._departed[next(iter(self._departed))]
        if len(self._keys) > FEW + len(self._pods):
            # Nobody asks, as in a replica that does not lead: it must not grow for ever.
            self._overflowed, self._keys, self._names = True, set(), set(self._last_names)

    def placed_elsewhere(self, there: Collection[str]) -> list[Pod]:
        """The pods that say that they were placed on a node which is none of these."""
        return [pod for name in self._placed if name not in there for pod in self._placed[name].values()]

    def collect(self, nodes: Iterable[GpuNode], also: Iterable[str] = ()) -> Touched:
        """What has changed since the last time, as far as it is not too much at once, and `also` these nodes."""
        there = {node.name: node for node in nodes}
        changed = [name for name, node in there.items() if self._nodes.get(name) is not node]
        for name in (*changed[: self._max_nodes], *(self._nodes.keys() - there.keys())):
            self._keys.update(self._update_node(name, there.get(name)))
            self._names.add(name)
        for key in self._keys:
            self._names.update(self._where.get(key, ()))
        if self._overflowed:
            self._names |= there.keys()
        # What ties nodes together is known when all are looked up: none of them is looked at before.
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
        # In the order in which they came: who claims something first has it, and times tell no more than the second.
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
        """Look it up as it is from now on; return what holds something there, or held it."""
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
    """Its uid, the allocation that it names, and the node that it says it was placed on; empty for none."""
    return pod.ref.uid, pod.allocation_id, pod.placed_on
