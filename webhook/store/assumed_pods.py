"""AssumedPods: pods that were placed a moment ago and that no watch has shown yet. They take room, too."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable

from gpushare.nodefilters import PodInfo, SchedulerCache, share_resources
from gpushare.pod import PodJson


class AssumedPods:
    """`holds(node, allocation id)`: whether the ledger has the share that the place goes with."""

    def __init__(self, cache: SchedulerCache, holds: Callable[[str, str], bool]) -> None:
        self._cache = cache
        self._holds = holds
        self._made: dict[str, tuple[PodJson, str]] = {}  # allocation id -> pod, node
        self._by_pod: dict[int, str] = {}
        self._by_node: dict[str, set[str]] = collections.defaultdict(set)

    def make(self, manifest: PodJson, node: str, allocation_id: str) -> Callable[[], None]:
        """Count the pod on the node from now on, as it is now, and no longer where it was promised to go before.

        Returns what ends that.
        """
        for before in (self._by_pod.get(id(manifest)), allocation_id):
            if before is not None:
                self.settle(before)
        self._made[allocation_id] = manifest, node
        self._by_pod[id(manifest)] = allocation_id
        self._by_node[node].add(allocation_id)
        self._cache.put(_key(allocation_id), PodInfo.from_manifest(share_resources.equipped(manifest), node))
        return lambda: self.settle(allocation_id)

    def key(self, manifest: PodJson) -> Hashable:
        """By which key the scheduler cache counts this very pod; None if it is not assumed."""
        allocation_id = self._by_pod.get(id(manifest))
        return None if allocation_id is None else _key(allocation_id)

    def settle(self, allocation_id: str) -> None:
        """It is seen and counted for itself, or it will never come."""
        made = self._made.pop(allocation_id, None)
        if made is None:
            return
        manifest, node = made
        del self._by_pod[id(manifest)]
        self._by_node[node].discard(allocation_id)
        if not self._by_node[node]:
            del self._by_node[node]
        self._cache.put(_key(allocation_id), None)

    def sweep(self, node: str) -> None:
        """Drop those whose share the ledger no longer has."""
        for allocation_id in [identity for identity in self._by_node.get(node, ()) if not self._holds(node, identity)]:
            self.settle(allocation_id)


def _key(allocation_id: str) -> Hashable:
    return "promised", allocation_id
