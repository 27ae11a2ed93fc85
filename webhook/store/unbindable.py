"""Unbindable: nodes where the scheduler could not bind pods, by the owner of the pods. Pure.

The node filters model most of what the scheduler checks, but not its plugins, nor volumes that only one pod at a time
may use. A pod that is stuck for such a reason is evicted or deleted, and its replacement would go to the same node
again. So for a while that node is blocked for pods of the same owner, and for some time after that it is the last
resort. Each replica learns this from the pods that it watches.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Final

from gpushare import pod

FIRST_SECONDS: Final = 120.0  # as long as the pause between two evictions of one owner: see `evictor`
MAX_SECONDS: Final = 3600.0
LAST_RESORT_SECONDS: Final = 3600.0  # after that: long enough to try several other nodes
MAX_MAKERS: Final = 4096

Maker = tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Avoided:
    """Nodes to avoid for a pod. blocked: nodes and why, as the rest of a sentence. last_resort: use only if no other
    fits.
    """

    blocked: Mapping[str, str]
    last_resort: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    why: str
    blocked_until: float
    pause_seconds: float


NO_AVOIDED: Final = Avoided({}, frozenset())


class Unbindable:
    """The nodes where pods of each maker could not be bound."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_maker: collections.OrderedDict[Maker, dict[str, _Node]] = collections.OrderedDict()

    def deleted(self, maker: Maker, node: str, why: str) -> None:
        """Record that a pod of this maker was deleted before it could be bound there."""
        now = self._clock()
        known = {
            name: known_node
            for name, known_node in self._by_maker.pop(maker, {}).items()
            if now < known_node.blocked_until + LAST_RESORT_SECONDS
        }
        before = known.get(node)
        pause = FIRST_SECONDS if before is None else min(2 * before.pause_seconds, MAX_SECONDS)
        self._by_maker[maker] = {**known, node: _Node(why, now + pause, pause)}
        if len(self._by_maker) > MAX_MAKERS:
            self._by_maker.popitem(last=False)

    def was_bound(self, maker: Maker, node: str) -> None:
        """Record that a pod of this maker was bound there after all."""
        known = self._by_maker.get(maker, {})
        known.pop(node, None)
        if not known:
            self._by_maker.pop(maker, None)

    def avoided(self, manifest: pod.PodJson) -> Avoided:
        """Return the nodes to avoid for this pod."""
        own = maker_of(*pod.namespaced_name(manifest), pod.controller(manifest)) if self._by_maker else None
        known = self._by_maker.get(own[0]) if own is not None else None
        if not known:
            return NO_AVOIDED
        now = self._clock()
        return Avoided(
            {name: node.why for name, node in known.items() if now < node.blocked_until},
            frozenset(
                name
                for name, node in known.items()
                if node.blocked_until <= now < node.blocked_until + LAST_RESORT_SECONDS
            ),
        )


def maker_of(namespace: str, name: str, controller: pod.Controller | None) -> tuple[Maker, str] | None:
    """Return the maker of a pod, as a key and in words: its controller or, by the pod's name, a user. None if it has
    neither.

    The key includes the namespace, because users can write any owner UID.
    """
    if controller is not None:
        return (namespace, controller.uid), f"a pod of {controller.kind} {controller.name}"
    return ((namespace, f"/{name}"), f"a pod named {name}") if name else None
