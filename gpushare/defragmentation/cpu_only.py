"""CPU-only pods: pods without any device that hold CPU or memory on a node with GPUs that a share could use.

They are not in the ledger. In plans, an allocation without GPUs represents each of them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Final

from gpushare import pod
from gpushare.allocation import Allocation, PodRef
from gpushare.mix import Host
from gpushare.nodefilters import pod_requests
from gpushare.whatif.world import RequestingPod, World

_PREFIX: Final = "cpu-only-"  # of the IDs of these allocations


@dataclasses.dataclass(frozen=True, slots=True)
class CpuOnlyPod:
    """A pod that may be moved; `host`: the CPU and memory that it holds."""

    node: str
    manifest: pod.PodJson
    entry: Allocation
    host: Host


def is_cpu_only(manifest: pod.PodJson) -> bool:
    """Whether a pod uses no device: no share, no GPU of another device plugin, no resource claim."""
    if pod.asks_for_share(manifest) or (manifest.get("spec") or {}).get("resourceClaims"):
        return False
    return not any("/" in name for name in pod_requests.requests(manifest))


def stands_for(entry: Allocation) -> bool:
    """Whether this allocation represents a CPU-only pod instead of a ledger entry."""
    return entry.id.startswith(_PREFIX)


class CpuOnlyPods:
    """The CPU-only pods of a world, by their node, which has GPUs."""

    def __init__(self, world: World, may_leave: Callable[[Allocation], RequestingPod | None]) -> None:
        self._world = world
        self._may_leave = may_leave
        self._on: dict[str, list[CpuOnlyPod]] = collections.defaultdict(list)
        for node, manifest in world.pods():
            if node not in world.views or not is_cpu_only(manifest):
                continue
            amounts = pod_requests.requests(manifest, running=True)
            host = Host(amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0))
            holder = PodRef(*pod.namespaced_name(manifest), pod.uid(manifest))
            entry = Allocation(f"{_PREFIX}{holder.uid or holder}", holder, ())
            self._on[node].append(CpuOnlyPod(node, manifest, entry, host))

    def on(self, node: str) -> list[CpuOnlyPod]:
        """Return the movable pods that are still on a node, those with the most CPU first."""
        movable = [
            there
            for there in self._on.get(node, ())
            if self._world.has_pod(there.entry) and self._may_leave(there.entry) is not None
        ]
        return sorted(movable, key=lambda there: (-there.host.cpu_milli, -there.host.memory_bytes, there.entry.id))
