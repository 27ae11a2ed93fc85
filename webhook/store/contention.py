"""Contention: which nodes to leave to the other replicas for now. Pure.

All replicas think the same node best, so in a burst all of them would write to it, and of the writes that meet only one
wins. A replica that has lost one leaves that node alone for a moment, and looks first at its half of all nodes, as long
as there is room: one half is the leader's, the other is for all who do not lead. Where these meet in turn, because they
are several, each looks first at a half of that half that it has drawn for itself. When nothing was lost for a while, or
a pod fits nowhere else, every node is everybody's.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

LEFT_SECONDS: Final = 2.0


class Contention:
    """`salt` draws the half of a half; by default each replica has its own.

    leads: whether this replica is the leader; nobody may be for a moment, and then all look at the same half.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self.leads = False
        self._salt = secrets.token_bytes(8) if salt is None else salt
        self._left_until: dict[str, float] = {}

    def lost(self, node: str, *, now: float) -> None:
        """A write to the node came too late; `now` in seconds."""
        self._left_until[node] = now + LEFT_SECONDS

    def left(self, *, now: float) -> Callable[[str], bool] | None:
        """Which nodes are left to others; None while nothing was lost a moment ago."""
        self._left_until = {name: until for name, until in self._left_until.items() if until > now}
        fought_for = frozenset(self._left_until)
        if not fought_for:
            return None
        leads, salt = self.leads, self._salt
        is_crowded = not leads and not all(map(_is_of_leader, fought_for))

        def is_left(node: str) -> bool:
            is_others = _is_of_leader(node) != leads or (is_crowded and _is_one(node, key=salt))
            return is_others or node in fought_for

        return is_left


def _is_of_leader(node: str) -> bool:
    return _is_one(node, key=b"")


def _is_one(node: str, *, key: bytes) -> bool:
    return bool(hashlib.blake2b(node.encode(), digest_size=1, key=key).digest()[0] & 1)
