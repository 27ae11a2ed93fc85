"""How much of our resources this node has to give, as scheduler and kubelet count it.

Who gets which GPU stands in the ledger; scheduler and kubelet only count, and what they count must never be in the way
of what the ledger has decided. The resources of a pod cannot change once it runs, and it counts for as long as it is
there. So the node has what those of its GPUs have that take shares now, and beyond that

* what pods have on GPUs that are sick, gone, or on their way to another mode: they go on counting, and would otherwise
  take as much away from the others;
* what pods that were made smaller still count for, though nobody has it.

Pods that were made larger need nothing: there the ledger is the stricter of the two.

What the node has rises at once and falls late (`Stabilized`): ledger, pods and kubelet are heard of at different times,
and too much counted does no harm, while of too little a pod dies that was placed well.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from gpushare import contract, pod
from gpushare.allocation import Allocation, GivenShare, peak
from gpushare.config import names
from gpushare.gpu import Gpu, Mode
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import pod_requests
from gpushare.pod import PodJson

# By resource, how much of it the node has.
Allocatable = Mapping[str, int]

FALL_SECONDS: Final = 5.0

# By resource, how much of it a GPU has that takes shares. A share without guaranteed compute is counted only because
# the kubelet asks about nothing else: what it counts for is no part of a GPU.
OF_A_GPU: Final[Mapping[str, Callable[[Gpu], int]]] = {
    contract.RESOURCE_PERCENT: lambda _: 100,
    contract.RESOURCE_IDLE: lambda _: contract.IDLE_SHARES_PER_GPU,
    contract.RESOURCE_MEMORY: lambda gpu: gpu.memory_bytes,
}


_OF_A_SHARE: Final[Mapping[str, Callable[[GivenShare], int]]] = {
    contract.RESOURCE_PERCENT: lambda share: share.request_percent,
    contract.RESOURCE_IDLE: lambda share: len(share.containers) - bool(share.request_percent),  # but one with per cent
    contract.RESOURCE_MEMORY: lambda share: share.memory_bytes,
}


def allocatable(gpus: Iterable[Gpu], node: GpuNode | None, pods: Iterable[PodJson]) -> Allocatable:
    """What the node has of each of the resources; 0 where no GPU takes shares and none is held.

    gpus: of the node; node: its ledger; pods: those that are on it.
    """
    fractional = [gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL]
    entries = [entry for entry in (node.allocations if node is not None else ()) if not entry.is_backfill_reservation]
    counted = _counted(entries, pods)
    units = {}
    for name, amount in OF_A_GPU.items():
        usable = {gpu.uuid: amount(gpu) for gpu in fractional if _is_open(gpu) or name == contract.RESOURCE_IDLE}
        claimed = beyond = 0
        for entry in entries:
            granted = _granted(entry, name)
            most = max(sum(granted.values()), counted.get(entry.id, {}).get(name, 0))
            claimed += most
            beyond += most - sum(granted[uuid] for uuid in granted.keys() & usable.keys())
        units[name] = max(sum(usable.values()) + beyond, claimed)
    return units


def while_unknown(gpus: Iterable[Gpu], in_use: Mapping[str, Collection[str]]) -> Allocatable:
    """The same while ledger or pods are not known yet: what all healthy GPUs have, and again what containers hold.

    in_use: by resource the ids that they do. Whatever those count for, and on whichever GPU they are, a pod that the
    ledger has placed is let in; and nobody places by this.
    """
    usable = [gpu for gpu in gpus if gpu.mode is Mode.FRACTIONAL and gpu.healthy]
    return {name: sum(map(amount, usable)) + len(in_use.get(name, ())) for name, amount in OF_A_GPU.items()}


class Stabilized:
    """The most that `measure` has said within the last `FALL_SECONDS`, for each resource."""

    def __init__(
        self, measure: Callable[[Iterable[Gpu]], Allocatable], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._measure = measure
        self._clock = clock
        self._recent: collections.deque[tuple[float, Allocatable]] = collections.deque()  # each with when it began

    def __call__(self, gpus: Iterable[Gpu]) -> Allocatable:
        """What a node with these GPUs has now."""
        now, latest = self._clock(), self._measure(gpus)
        if not self._recent or self._recent[-1][1] != latest:
            self._recent.append((now, latest))
        while len(self._recent) > 1 and self._recent[1][0] <= now - FALL_SECONDS:
            self._recent.popleft()  # the next one came that long ago
        return {name: max(units.get(name, 0) for _, units in self._recent) for name in latest}

    @property
    def falls_in_seconds(self) -> float:
        """When to look again, for it may fall; infinite while it will not."""
        if len(self._recent) < 2:
            return math.inf
        return max(0.0, self._recent[1][0] + FALL_SECONDS - self._clock())


def trimmed(manifest: PodJson) -> dict[str, object]:
    """Keep a pod's resources by container: ours, which are counted, and those that may be whole GPUs."""
    return {
        kind: [
            {
                **({"restartPolicy": container["restartPolicy"]} if "restartPolicy" in container else {}),
                "resources": {
                    key: declared if key == "claims" else _kept(declared or {})
                    for key, declared in (container.get("resources") or {}).items()
                    if key in {"requests", "limits", "claims"}
                },
            }
            for container in containers
        ]
        for kind, containers in (
            ("containers", pod.containers(manifest)),
            ("initContainers", pod.init_containers(manifest)),
        )
    }


def _kept(amounts: Mapping[str, str]) -> Mapping[str, str]:
    return {name: text for name, text in amounts.items() if name.startswith((contract.PREFIX, names.PREFIX))}


def _is_open(gpu: Gpu) -> bool:
    """Whether the ledger may give anything of it."""
    return gpu.healthy and gpu.pending_mode is None


def _counted(entries: Iterable[Allocation], pods: Iterable[PodJson]) -> dict[str, Mapping[str, int]]:
    """What the pods of these allocations count for, by the allocation's id."""
    uids = {entry.id: entry.pod.uid for entry in entries}
    counted: dict[str, Mapping[str, int]] = {}
    for manifest in pods:
        identity = pod.annotations_of(manifest).get(contract.ALLOCATION, "")
        if identity in uids and uids[identity] == pod.uid(manifest) and not pod.is_terminal(manifest):
            counted[identity] = pod_requests.requests(manifest)
    return counted


def _granted(entry: Allocation, resource: str) -> Mapping[str, int]:
    """What the ledger has of it for this pod, by GPU."""
    amount = _OF_A_SHARE[resource]
    return {
        uuid: peak((share for share in entry.shares if uuid in share.gpu_uuids), amount) for uuid in entry.gpu_uuids
    }
