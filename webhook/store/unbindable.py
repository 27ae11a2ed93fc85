"""Unbindable: nodes where the scheduler could not bind pods, by who made these. Pure.

The node filters model most of what the scheduler looks at; not what its plugins add, nor volumes that one pod at a
time may use. A pod that is stuck for such a reason is evicted or deleted, and what is recreated in its place would go
to the very same node, for ever. So that node is nothing for pods of the same owner for a while, and only the last
resort for some time after that. Each replica sees this by itself, in the pods that it watches.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Final

from gpushare import pod

FIRST_SECONDS: Final = 120.0  # as long as one owner's pods are let be between two evictions: see `unschedulable_pods`
MAX_SECONDS: Final = 3600.0
LAST_SECONDS: Final = 3600.0  # after that: long enough for several other nodes to have been tried
MAX_MAKERS: Final = 4096

Maker = tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Avoided:
    """`barred`: nodes that are not for the pod, and why, as the rest of a sentence. last: others before these."""

    barred: Mapping[str, str]
    last: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    why: str
    barred_until: float
    pause_seconds: float


NOTHING: Final = Avoided({}, frozenset())


class Unbindable:
    """Remembers where pods could not be bound."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: collections.OrderedDict[Maker, dict[str, _Node]] = collections.OrderedDict()

    def left(self, maker: Maker, node: str, why: str) -> None:
        """A pod of this maker has gone that could not be bound there."""
        now = self._clock()
        known = {
            name: known_node
            for name, known_node in self._of.pop(maker, {}).items()
            if now < known_node.barred_until + LAST_SECONDS
        }
        before = known.get(node)
        pause = FIRST_SECONDS if before is None else min(2 * before.pause_seconds, MAX_SECONDS)
        self._of[maker] = {**known, node: _Node(why, now + pause, pause)}
        if len(self._of) > MAX_MAKERS:
            self._of.popitem(last=False)

    def bound(self, maker: Maker, node: str) -> None:
        """One could be bound there after all."""
        known = self._of.get(maker, {})
        known.pop(node, None)
        if not known:
            self._of.pop(maker, None)

    def avoided(self, manifest: pod.PodJson) -> Avoided:
        """The nodes that are not for this pod."""
        own = maker(*pod.namespaced_name(manifest), pod.controller(manifest)) if self._of else None
        known = self._of.get(own[0]) if own is not None else None
        if not known:
            return NOTHING
        now = self._clock()
        return Avoided(
            {name: node.why for name, node in known.items() if now < node.barred_until},
            frozenset(
                name for name, node in known.items() if node.barred_until <= now < node.barred_until + LAST_SECONDS
            ),
        )


def maker(namespace: str, name: str, controller: pod.Controller | None) -> tuple[Maker, str] | None:
    """Who makes such a pod again, to compare by and as words: its controller; or, by its name, a user.

    With the namespace: whose uid is written on a pod is its user's to say. None for a pod of which nobody can know.
    """
    if controller is not None:
        return (namespace, controller.uid), f"a pod of {controller.kind} {controller.name}"
    return ((namespace, f"/{name}"), f"a pod named {name}") if name else None
