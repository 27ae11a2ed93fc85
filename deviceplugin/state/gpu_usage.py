"""The users of each GPU, from the ledger, the kubelet and the driver. Pure.

Each source sees users that the others miss. The ledger has shares whose pods have not started, the kubelet has
containers with a device that do not compute yet, and the driver sees processes that neither knows.
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
    """A process that computes on a GPU. pod: `NAMESPACE/NAME`, or "" if it runs in no known pod."""

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
    """Return the users of each GPU in a few words each, by GPU UUID.

    held: the containers' devices as the kubelet lists them; counters among them are ignored, as they belong to no GPU.
    just_given: device IDs that were just allocated and that the kubelet may not list yet.
    gpu_of: the GPU's UUID by the UUID of each GPU and MIG device.
    ended: completed pods, as NAMESPACE/NAME, that the kubelet may still list.
    """
    users_of: dict[str, dict[str, None]] = collections.defaultdict(dict)
    known: set[str] = set()
    for entry in allocations:
        if not entry.is_backfill_reservation:  # a backfill reservation has no pod yet, and gives way
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
    """Return the UUID of the GPU or MIG device in a device ID."""
    return device_id.partition(REPLICA)[0]


def _pod(entry: Allocation) -> str:
    if entry.pod.name:
        return f"pod {entry.pod.namespace}/{entry.pod.name}"
    return f"a pod of namespace {entry.pod.namespace} that is being created"
