"""Allocation conflicts: living pods that name an allocation which another pod holds. Pure.

A pod's name may not be known when its share is reserved (`generateName`), and who reads the id of a share that is not
confirmed yet can create a second pod with it that asks for the same. One of the two holds it, the first to be seen; the
other was admitted, holds nothing, and is refused every GPU call on its node. It has to be told so.
"""

from __future__ import annotations

from gpushare.allocation import PodRef
from webhook.books.touched_nodes import Touched
from webhook.pods.stored_pod import Pod


class AllocationConflict:
    """Such pods of all nodes, of which only some are looked at again."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[Pod, PodRef]]] = {}  # by node

    def renew(self, touched: Touched) -> list[tuple[Pod, PodRef]]:
        """Such pods, each with who holds what it names; `touched`: since the last time."""
        for name in self._found.keys() & touched.names:
            del self._found[name]
        entries = [(node.name, entry) for node in touched.nodes for entry in node.allocations if entry.pod.uid]
        holders = {entry.id: (name, entry.pod) for name, entry in entries}
        own = {entry.pod.uid for _, entry in entries}
        for pod in touched.pods:
            held = holders.get(pod.allocation_id)
            lives = not pod.leaves and not pod.has_ended and not pod.is_gated
            if held is not None and pod.ref.uid not in own and lives:
                self._found.setdefault(held[0], []).append((pod, held[1]))
        return [one for found in self._found.values() for one in found]


def explain(pod: Pod, holder: PodRef) -> str:
    """The sentence for one that nobody recreates."""
    return (
        f"names the allocation {pod.allocation_id}, which {holder} holds: it has no share of its own, and no GPU call "
        f"of it succeeds; delete and recreate it without the annotations that only gpushare writes"
    )
