"""Nodes to avoid for a while: other replicas write them, or an owner's pods could not be bound there. Pure."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from gpushare import pod

LOST_SECONDS: Final = 2.0
REFUSED_SECONDS: Final = 60.0  # the first time; doubles each time
MAX_REFUSED_SECONDS: Final = 3600.0


class Contention:
    """Which nodes to leave to other replicas for a while, by lost and rejected writes.

    In a burst all replicas would write to the same best node, and only one write wins. A replica that has lost one
    deprioritizes that node for a moment, and prefers its half of all nodes while there is room: one half is the
    leader's (`leads`), the other belongs to all others. If those conflict too, each prefers a random half of it, by
    `salt`. Once no write is lost for a while, or if a pod fits nowhere else, every replica uses every node.

    A node whose write the API server rejects is deprioritized for longer: a policy, a size limit or a schema may reject
    all that is written to it, or one pod's share, and one rejection does not tell which.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self.leads = False
        self._salt = secrets.token_bytes(8) if salt is None else salt
        self._lost_until: dict[str, float] = {}
        self._refused: dict[str, tuple[float, float]] = {}  # until when, and the length of the last pause

    def lost(self, node: str, *, now: float) -> None:
        self._lost_until[node] = now + LOST_SECONDS

    def refused(self, node: str, *, now: float) -> None:
        """Record a rejected or unanswered write of a single change. Pauses grow beyond those of the pods' retries."""
        until, seconds = self._refused.get(node, (now, REFUSED_SECONDS / 2))
        if until <= now:
            seconds = min(2 * seconds, MAX_REFUSED_SECONDS)
        self._refused[node] = now + seconds, seconds

    def written(self, node: str) -> None:
        self._refused.pop(node, None)

    def deprioritized(self, *, now: float) -> Callable[[str], bool] | None:
        self._lost_until = {name: until for name, until in self._lost_until.items() if until > now}
        # Forget nodes that were not rejected for as long as their last pause.
        self._refused = {name: known for name, known in self._refused.items() if sum(known) > now}
        contended = frozenset(self._lost_until)
        refused = frozenset(name for name, (until, _) in self._refused.items() if until > now)
        if not contended:
            return refused.__contains__ if refused else None
        leads, salt = self.leads, self._salt
        is_crowded = not leads and not all(map(_is_of_leader, contended))

        def is_deprioritized(node: str) -> bool:
            belongs_to_others = _is_of_leader(node) != leads or (is_crowded and _is_one(node, key=salt))
            return belongs_to_others or node in contended or node in refused

        return is_deprioritized


def _is_of_leader(node: str) -> bool:
    return _is_one(node, key=b"")


def _is_one(node: str, *, key: bytes) -> bool:
    return bool(hashlib.blake2b(node.encode(), digest_size=1, key=key).digest()[0] & 1)


FIRST_SECONDS: Final = 120.0  # as long as the pause between two evictions of one owner: see `evictor`
MAX_SECONDS: Final = 3600.0
LAST_RESORT_SECONDS: Final = 3600.0  # after that: long enough to try several other nodes
MAX_MAKERS: Final = 4096

Maker = tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Avoided:
    """Nodes to avoid for a pod: blocked ones and why, as the rest of a sentence, and those to use if no other fits."""

    blocked: Mapping[str, str]
    last_resort: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    why: str
    blocked_until: float
    pause_seconds: float


NO_AVOIDED: Final = Avoided({}, frozenset())


class Unbindable:
    """The nodes where the scheduler could not bind pods, by their maker: the owner of the pods.

    The node filters do not model plugins of the scheduler, nor volumes that only one pod at a time may use. The
    replacement of a stuck pod would go to the same node again. So for a while that node is blocked for pods of the same
    owner, and then the last resort. Each replica learns this from the pods that it watches.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_maker: collections.OrderedDict[Maker, dict[str, _Node]] = collections.OrderedDict()

    def deleted(self, maker: Maker, node: str, why: str) -> None:
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
        known = self._by_maker.get(maker, {})
        known.pop(node, None)
        if not known:
            self._by_maker.pop(maker, None)

    def avoided(self, manifest: pod.PodJson) -> Avoided:
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
    """Return key and words for the maker of a pod, or None. The key has the namespace: owner UIDs can be forged."""
    if controller is not None:
        return (namespace, controller.uid), f"a pod of {controller.kind} {controller.name}"
    return ((namespace, f"/{name}"), f"a pod named {name}") if name else None
