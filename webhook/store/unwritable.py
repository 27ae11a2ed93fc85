"""Unwritable: GPUNodes that the API server does not store as we write them. Pure.

A policy engine, a limit of size or a schema may be against all that is written to a node, or against one pod's share in
it. One refusal does not tell which. So such a node is taken last for a while: nobody waits for it who has another.
"""

from __future__ import annotations

from typing import Final

LEFT_SECONDS: Final = 60.0


class Unwritable:
    """By name of the node; all times in seconds of one clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def refused(self, node: str, *, now: float) -> None:
        """A write that carried a single change was refused, or was never answered."""
        self._until[node] = now + LEFT_SECONDS

    def written(self, node: str) -> None:
        """A write of this node went through."""
        self._until.pop(node, None)

    def nodes(self, *, now: float) -> frozenset[str]:
        """The nodes to try last."""
        if self._until:
            self._until = {name: until for name, until in self._until.items() if until > now}
        return frozenset(self._until)
