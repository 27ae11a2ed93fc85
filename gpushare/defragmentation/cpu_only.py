"""CPU-only pods: pods without any device that hold the CPU or memory of a node whose GPUs a share could use.

They are in no ledger. Where the plan treats them as pods with shares, an allocation of no GPU stands for each.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Final

from gpushare import pod
from gpushare.allocation import Allocation, PodRef
from gpushare.mix import Host
from gpushare.nodefilters import pod_requests
from gpushare.whatif.world import RequestingPod, World

MAX_TOGETHER: Final = 3  # pods that leave a node for one share
_MAX_TRIED: Final = 8  # pods of a node, those that hold the most CPU; and as many that hold the most memory
_PREFIX: Final = "cpu-only-"  # of the ids of what stands for them


@dataclasses.dataclass(frozen=True, slots=True)
class CpuOnlyPod:
    """A pod that may be moved; `host`: what it holds of its node."""

    node: str
    manifest: pod.PodJson
    entry: Allocation
    host: Host


def is_cpu_only(manifest: pod.PodJson) -> bool:
    """Whether a pod uses no device at all: no share, no GPU of another plugin, nothing that is claimed."""
    if pod.asks_for_share(manifest) or (manifest.get("spec") or {}).get("resourceClaims"):
        return False
    return not any("/" in name for name in pod_requests.requests(manifest))


def stands_for(entry: Allocation) -> bool:
    """Whether this is no entry of the ledger, and stands for a CPU-only pod."""
    return entry.id.startswith(_PREFIX)


class CpuOnlyPods:
    """Those of a world, by the node with GPUs that they are on."""

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
        """Those still on a node that may be moved, the one with the most CPU first."""
        movable = [
            there
            for there in self._on.get(node, ())
            if self._world.has_pod(there.entry) and self._may_leave(there.entry) is not None
        ]
        return sorted(movable, key=lambda there: (-there.host.cpu_milli, -there.host.memory_bytes, there.entry.id))


def enough(there: Sequence[CpuOnlyPod], lacking: Host) -> tuple[CpuOnlyPod, ...] | None:
    """The fewest of a node's pods that hold so much, and of as few those that hold the least; None if none do."""
    by_memory = sorted(there, key=lambda known: -known.host.memory_bytes)
    tried = {known.entry.id: known for known in (*there[:_MAX_TRIED], *by_memory[:_MAX_TRIED])}.values()
    for count in range(1, min(len(tried), MAX_TOGETHER) + 1):
        sets = [
            leaving
            for leaving in itertools.combinations(tried, count)
            if sum(known.host.cpu_milli for known in leaving) >= lacking.cpu_milli
            and sum(known.host.memory_bytes for known in leaving) >= lacking.memory_bytes
        ]
        if sets:
            return min(sets, key=lambda leaving: sum(known.host.cpu_milli for known in leaving))
    return None
