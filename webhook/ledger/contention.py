"""Contention: which nodes to leave to the other replicas for now. Pure.

All replicas think the same node best, so in a burst all of them would write to it, and of the writes that meet only one
wins. A replica that has lost one leaves that node alone for a moment, and looks first at a half of all nodes that it
has drawn for itself, as long as there is room: another replica has most likely drawn another half. When nothing was
lost for a while, or a pod fits nowhere else, every node is everybody's.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

LEFT_SECONDS: Final = 2.0


class Contention:
    """`salt` draws the half; by default each replica has its own."""

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = secrets.token_bytes(8) if salt is None else salt
        self._left_until: dict[str, float] = {}

    def lost(self, node: str, *, now: float) -> None:
        """A write to the node came too late; `now` in seconds."""
        self._left_until[node] = now + LEFT_SECONDS

    def is_felt(self, *, now: float) -> bool:
        """Whether anything was lost a moment ago."""
        if self._left_until:
            self._left_until = {name: until for name, until in self._left_until.items() if until > now}
        return bool(self._left_until)

    def is_left(self, node: str) -> bool:
        """Whether the node is left to others while contention is felt."""
        return node in self._left_until or bool(
            hashlib.blake2b(node.encode(), digest_size=1, key=self._salt).digest()[0] & 1
        )
