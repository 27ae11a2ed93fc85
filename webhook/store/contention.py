"""Contention: which nodes to leave to other replicas for a while. Pure.

All replicas prefer the same node, so in a burst all of them would write to it, and only one of the writes wins. A
replica that has lost a write deprioritizes that node for a moment, and prefers its half of all nodes as long as there
is room: one half is the leader's, the other half belongs to all other replicas. If those conflict too, each prefers a
random half of their half. Once no write is lost for a while, or if a pod fits nowhere else, every replica uses every
node.

A node whose write the API server rejects is deprioritized too, for longer. A policy engine, a size limit or a schema
may reject everything that is written to it, or one pod's share, and one rejection does not tell which.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

LOST_SECONDS: Final = 2.0
REFUSED_SECONDS: Final = 60.0  # the first time; doubles each time
MAX_REFUSED_SECONDS: Final = 3600.0


class Contention:
    """Lost and rejected writes by node. `salt` selects the half of a half; by default each replica has its own.

    leads: whether this replica is the leader; without a leader, all replicas prefer the same half.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self.leads = False
        self._salt = secrets.token_bytes(8) if salt is None else salt
        self._lost_until: dict[str, float] = {}
        self._refused: dict[str, tuple[float, float]] = {}  # until when, and the length of the last pause

    def lost(self, node: str, *, now: float) -> None:
        """Record a conflict on a write to the node; `now` in seconds."""
        self._lost_until[node] = now + LOST_SECONDS

    def refused(self, node: str, *, now: float) -> None:
        """Record that a write of a single change was rejected or not answered.

        Pauses grow beyond those of the pods' retries, so a pod that the best nodes reject gets to try others.
        """
        until, seconds = self._refused.get(node, (now, REFUSED_SECONDS / 2))
        if until <= now:
            seconds = min(2 * seconds, MAX_REFUSED_SECONDS)
        self._refused[node] = now + seconds, seconds

    def written(self, node: str) -> None:
        """Record a successful write."""
        self._refused.pop(node, None)

    def deprioritized(self, *, now: float) -> Callable[[str], bool] | None:
        """Return which nodes to use only if no other fits, or None if there are none."""
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
