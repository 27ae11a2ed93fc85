"""Contention: which nodes to leave to the other replicas for now. Pure.

All replicas think the same node best, so in a burst all of them would write to it, and of the writes that meet only one
wins. A replica that has lost one leaves that node alone for a moment, and looks first at its half of all nodes, as long
as there is room: one half is the leader's, the other is for all who do not lead. Where these meet in turn, because they
are several, each looks first at a half of that half that it has drawn for itself. When nothing was lost for a while, or
a pod fits nowhere else, every node is everybody's.

A node that the API server does not store is left as well, for longer: a policy engine, a limit of size or a schema may
be against all that is written to it, or against one pod's share in it, and one refusal does not tell which.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

LOST_SECONDS: Final = 2.0
REFUSED_SECONDS: Final = 60.0  # the first time, and twice as long each time after
MAX_REFUSED_SECONDS: Final = 3600.0


class Contention:
    """`salt` draws the half of a half; by default each replica has its own.

    leads: whether this replica is the leader; nobody may be for a moment, and then all look at the same half.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self.leads = False
        self._salt = secrets.token_bytes(8) if salt is None else salt
        self._lost_until: dict[str, float] = {}
        self._refused: dict[str, tuple[float, float]] = {}  # until when, and for how long the last time

    def lost(self, node: str, *, now: float) -> None:
        """A write to the node came too late; `now` in seconds."""
        self._lost_until[node] = now + LOST_SECONDS

    def refused(self, node: str, *, now: float) -> None:
        """A write that carried a single change was refused, or was never answered.

        Whoever was refused by the best nodes is tried again while these are still left, and gets to others.
        """
        until, seconds = self._refused.get(node, (now, REFUSED_SECONDS / 2))
        if until <= now:
            seconds = min(2 * seconds, MAX_REFUSED_SECONDS)
        self._refused[node] = now + seconds, seconds

    def written(self, node: str) -> None:
        """A write of this node went through."""
        self._refused.pop(node, None)

    def deprioritized(self, *, now: float) -> Callable[[str], bool] | None:
        """Which nodes are taken only where no other will do; None while that is none."""
        self._lost_until = {name: until for name, until in self._lost_until.items() if until > now}
        # Who was not refused for as long again is forgotten.
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
