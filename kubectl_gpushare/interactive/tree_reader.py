"""Reads the cluster for `top -i` in the background, so that no key waits for kubectl.

The thread posts each new tree to the app. While the cluster does not answer it keeps the last one, and says since when.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from gpushare import pod
from gpushare.gpunode import GpuNode
from kubectl_gpushare import following, plugin_errors
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_tree
from kubectl_gpushare.views.gpu_tree import ClusterTree

ReadSnapshot = Callable[[Sequence[GpuNode]], Snapshot]

_MOST_PODS = 5000  # shares: with more, only the pods that are on no node are read
_NOT_READ = f"the states of pods on nodes are not read, as there are more than {_MOST_PODS:,}: d shows a pod's"


@dataclasses.dataclass(frozen=True, slots=True)
class Outage:
    """Why the tree may be out of date, and since when (Unix seconds)."""

    reason: str
    since: float


@dataclasses.dataclass(frozen=True, slots=True)
class TreeReader:
    """Makes trees of a source. `read` returns the GPUNodes with everything around them except their pods."""

    origin: chosen_source.Source
    read: ReadSnapshot
    namespace: str = ""

    def tree(self, nodes: Sequence[GpuNode], previous: ClusterTree | None = None) -> ClusterTree:
        """Read pods and what is around the GPUNodes. Raises `PluginError`."""
        snapshot = self.read(nodes)
        notes = list(snapshot.notes)
        unbound: Sequence[pod.PodJson] | None = None
        origin = self.origin
        count = sum(len(node.allocations) for node in nodes)
        if not isinstance(origin, live_cluster.LiveCluster) or count <= _MOST_PODS:
            pods = chosen_source.with_pods(origin, list(nodes))
            snapshot = dataclasses.replace(snapshot, pods=pods.pods, notes=(*notes, *pods.notes))
        else:
            unbound = chosen_source.read(origin.unbound_pods, "pods that wait", notes, unsaved="")
            snapshot = dataclasses.replace(snapshot, notes=(*notes, _NOT_READ))
        return gpu_tree.build(snapshot, unbound, now=time.time(), namespace=self.namespace, previous=previous)

    def follow(
        self,
        feed: following.Feed,
        tree: ClusterTree,
        show: Callable[[ClusterTree, Outage | None], object],
        stop: threading.Event,
        ended: int,
    ) -> None:
        """Show a tree after each change and every POLL_SECONDS, until `stop`; input on `ended` ends a wait for it."""
        outage: Outage | None = None
        read_at = time.monotonic()
        while not stop.is_set():
            changed = following.settled(feed, (ended,))
            if not changed and time.monotonic() - read_at < following.POLL_SECONDS:
                continue
            trouble = feed.trouble
            if not trouble:
                try:
                    tree = self.tree(feed.nodes, tree)
                except plugin_errors.PluginError as error:
                    trouble = str(error)
            outage = Outage(trouble, outage.since if outage else time.time()) if trouble else None
            read_at = time.monotonic()
            show(tree, outage)
