"""Who uses which GPU: from the ledger, the kubelet and the driver, who each see what the others do not. Pure.

The ledger knows shares whose pods have not started. The kubelet knows who was given a device and has not computed yet.
The driver knows processes that neither has heard of.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from deviceplugin.state import pod_resources
from deviceplugin.state.advertisement import COUNTERS
from gpushare.allocation import Allocation

REPLICA: Final = "::"


@dataclasses.dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that computes on a GPU; `pod` is `NAMESPACE/NAME`, or empty where it is in none that is known."""

    pid: int
    name: str
    pod: str = ""


def users(
    *,
    allocations: Iterable[Allocation],
    held: Iterable[pod_resources.ContainerDevices],
    just_given: Iterable[str],
    processes: Mapping[str, Iterable[GpuUser]],
    gpu_of: Mapping[str, str],
    ended: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """By the UUID of the GPU, everyone who uses it, each in a few words.

    held: as the kubelet tells it; ids of shares by annotation are counters, and say nothing of a GPU.
    just_given: ids that a pod was given a moment ago, of which the kubelet may not tell yet.
    gpu_of: the GPU of each device id without its replica's number: of a GPU itself, of a MIG device its GPU.
    ended: pods, as NAMESPACE/NAME, that have run to their end; the kubelet may still list them.
    """
    users_of: dict[str, dict[str, None]] = collections.defaultdict(dict)
    known: set[str] = set()
    for entry in allocations:
        if not entry.is_backfill_reservation:  # that is nobody's yet, and given up where it cannot be used
            for uuid in entry.gpu_uuids:
                users_of[uuid][_pod(entry)] = None
    for container in held:
        if container.resource in COUNTERS:
            continue
        pod = f"{container.namespace}/{container.pod}"
        for uuid in {gpu_of[gpu] for gpu in map(without_replica, container.device_ids) if gpu in gpu_of}:
            known.update(container.device_ids)
            if pod not in ended:
                users_of[uuid][f"pod {pod}"] = None
    for identity in just_given:
        if identity not in known and without_replica(identity) in gpu_of:
            users_of[gpu_of[without_replica(identity)]]["a pod that is being started"] = None
    for uuid, running in processes.items():
        for process in running:
            users_of[uuid][f"pod {process.pod}" if process.pod else f"process {process.pid} ({process.name})"] = None
    return {uuid: tuple(words) for uuid, words in users_of.items()}


def without_replica(device_id: str) -> str:
    """The UUID of the GPU or MIG device that a device id is a replica of."""
    return device_id.partition(REPLICA)[0]


def _pod(entry: Allocation) -> str:
    if entry.pod.name:
        return f"pod {entry.pod.namespace}/{entry.pod.name}"
    return f"a pod of namespace {entry.pod.namespace} that is being created"
