"""AssumedPods: pods that were placed a moment ago and that no watch has shown yet. They use capacity too."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable

from gpushare.nodefilters import PodInfo, SchedulerCache, share_resources
from gpushare.pod import PodJson
from gpushare.request import Request


class AssumedPods:
    """Counts assumed pods in the scheduler cache. has_allocation(node, allocation ID): whether the ledger has it."""

    def __init__(self, cache: SchedulerCache, has_allocation: Callable[[str, str], bool]) -> None:
        self._cache = cache
        self._has_allocation = has_allocation
        self._assumed: dict[str, tuple[PodJson, str]] = {}  # allocation ID -> pod, node
        self._by_pod: dict[int, str] = {}
        self._by_node: dict[str, set[str]] = collections.defaultdict(set)

    def assume(self, manifest: PodJson, request: Request, node: str, allocation_id: str) -> Callable[[], None]:
        """Count the pod on the node as it is now, and no longer on the node that was assumed before.

        Return a function that ends that.
        """
        for before in (self._by_pod.get(id(manifest)), allocation_id):
            if before is not None:
                self.settle(before)
        self._assumed[allocation_id] = manifest, node
        self._by_pod[id(manifest)] = allocation_id
        self._by_node[node].add(allocation_id)
        self._cache.put(_key(allocation_id), PodInfo.from_manifest(share_resources.equipped(manifest, request), node))
        return lambda: self.settle(allocation_id)

    def key(self, manifest: PodJson) -> Hashable:
        """Return the key under which the scheduler cache counts this very object; None if it is not assumed."""
        allocation_id = self._by_pod.get(id(manifest))
        return None if allocation_id is None else _key(allocation_id)

    def settle(self, allocation_id: str) -> None:
        """Stop assuming a pod that was seen, or that will never exist."""
        assumed = self._assumed.pop(allocation_id, None)
        if assumed is None:
            return
        manifest, node = assumed
        del self._by_pod[id(manifest)]
        self._by_node[node].discard(allocation_id)
        if not self._by_node[node]:
            del self._by_node[node]
        self._cache.put(_key(allocation_id), None)

    def sweep(self, node: str) -> None:
        """Stop assuming pods whose share the ledger no longer has."""
        for allocation_id in [
            identity for identity in self._by_node.get(node, ()) if not self._has_allocation(node, identity)
        ]:
            self.settle(allocation_id)


def _key(allocation_id: str) -> Hashable:
    return "assumed", allocation_id
