"""The Prometheus metrics of shares and of containers that have GPUs.

The containers of a share use it together, so they are one label, joined by commas. A share without a process only has
the metrics of the ledger. Cost tools multiply `container_gpu_allocation` by a price. For a moment, a pod that ends and
its successor can have the same name and both have a share. Such shares are merged into one series.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.state import advertisement, pod_resources
from deviceplugin.state.node_state import ModesInForce, Observable, ObservableGpus
from gpushare import gpu_capacity
from gpushare.allocation import Allocation, GivenShare
from gpushare.gpu_capacity import ShareOnGpu
from gpushare.gpunode import GpuNode
from gpushare.mig import profile
from gpushare.modes import device_resources
from gpushare.modes.hardware_gpu import HardwareGpu

POLL_SECONDS: Final = 15.0
_GIB: Final = 1 << 30
LABELS: Final = ("node", "namespace", "pod", "containers", "gpu")
# Name and help of gauges, and of the counter of each field of `LeaseUsage`.
_USED: Final = {
    "gpushare_share_used_memory_bytes": "Memory that a share's processes have charged.",
    "gpushare_share_overhead_memory_bytes": (
        "Memory that a share's processes use beyond what they have charged: contexts, modules."
    ),
    "gpushare_share_limit_memory_bytes": "Memory limit of a share.",
    "gpushare_share_used_compute_ratio": (
        "Fraction of roughly the last ten seconds in which a share used its GPU; absent if it was not measured."
    ),
}
_GRANTED: Final = {
    "gpushare_share_allocated_compute_ratio": "Compute that a share is guaranteed, as a part of its GPU.",
    "gpushare_share_allocated_memory_bytes": "Memory that a share was given.",
    "gpushare_share_shrink_target_memory_bytes": (
        "Memory that a share has to shrink to; absent if it does not have to shrink."
    ),
}
_TURNS: Final = {
    "seconds": (
        "gpushare_share_lease_seconds",
        "Time for which a share had its GPU, used or not, since its first process started.",
    ),
    "leases": ("gpushare_share_leases", "How often a share was given its GPU, since its first process started."),
    "waited_seconds": (
        "gpushare_share_waiting_seconds",
        "Time for which a share waited to launch without having its GPU, since its first process started.",
    ),
    "throttled_seconds": (
        "gpushare_share_throttled_seconds",
        "The part of the waiting time in which a share was throttled by its own limit.",
    ),
    "evictions": (
        "gpushare_share_evictions",
        "How often a share did not return its GPU in time, so that other shares ran next to it.",
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A container's devices of one resource on one GPU: GPUs, MIG devices or replicas. part: their fraction of it."""

    namespace: str
    pod: str
    container: str
    resource: str
    gpu: str
    devices: int
    part: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceHolders:
    """Polls the kubelet. hardware: returns the GPUs with their MIG devices; gpus: the GPUs with their memory."""

    kubelet: pod_resources.KubeletDevices
    _: dataclasses.KW_ONLY
    hardware: Callable[[], Iterable[HardwareGpu]]
    gpus: ObservableGpus
    in_force: Observable[ModesInForce]

    async def run(self) -> None:
        while True:
            await self.kubelet.refresh()
            await asyncio.sleep(POLL_SECONDS)

    def all(self) -> list[DeviceHolder]:
        """Return the containers with devices, from the kubelet's last answer."""
        devices = parts(self.hardware(), {gpu.uuid: gpu.memory_bytes for gpu in self.gpus.gpus})
        replicas = {device.id: device.replicas for ids in self.in_force.value.offered.values() for device in ids}
        counts: collections.Counter[tuple[str, str, str, str, str]] = collections.Counter()
        held: dict[tuple[str, str, str, str, str], float] = collections.defaultdict(float)
        for container in self.kubelet.held:
            for identity in container.device_ids if container.resource not in advertisement.COUNTERS else ():
                if (device := device_resources.device_of(identity)) in devices:
                    gpu, part = devices[device]
                    key = container.namespace, container.pod, container.container, container.resource, gpu
                    counts[key] += 1
                    held[key] += part / replicas.get(identity, 1)
        return [DeviceHolder(*key, devices=count, part=held[key]) for key, count in sorted(counts.items())]


def parts(gpus: Iterable[HardwareGpu], memory: Mapping[str, int]) -> dict[str, tuple[str, float]]:
    """Return each device's GPU, and its fraction of that by memory, by UUID. memory: the bytes of each GPU."""
    by_uuid = {}
    for gpu in gpus:
        by_uuid[gpu.uuid] = gpu.uuid, 1.0
        for device in gpu.mig_devices:
            by_uuid[device.uuid] = gpu.uuid, _part(device.profile, memory.get(gpu.uuid, 0))
    return by_uuid


def _part(name: str, gpu_bytes: int) -> float:
    try:
        memory_bytes = profile.parse(name).memory_gb * _GIB
    except profile.ProfileError:
        return 1.0  # an unknown profile counts as the whole GPU
    return min(1.0, memory_bytes / gpu_bytes) if gpu_bytes else 1.0


def gauges(texts: Mapping[str, str]) -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(name, text, labels=LABELS) for name, text in texts.items()}


def usage(
    uses: Iterable[ShareUse],
    leases: Iterable[LeaseUsage],
    by_driver: Mapping[tuple[str, str], float],
    *,
    node_name: str,
) -> Iterator[Metric]:
    """Yield the metrics of shares that have processes: memory, leases, waiting time and used time.

    by_driver: by GPU UUID and share key, the used part of the GPU's time, for shares that the arbiter does not measure.
    """
    families = gauges(_USED)
    turns = {field: CounterMetricFamily(*texts, labels=LABELS) for field, texts in _TURNS.items()}
    processes = GaugeMetricFamily("gpushare_share_processes", "Processes that use a share.", labels=LABELS[:-1])
    measured = dict(by_driver)
    for lease in leases:
        for field, counter in turns.items():
            counter.add_metric([*_labels(lease.tenant, node_name), lease.gpu_uuid], getattr(lease, field))
        if lease.recent is not None:
            measured[lease.gpu_uuid, lease.tenant.key] = lease.recent
    for use in uses:
        labels = _labels(use.tenant, node_name)
        processes.add_metric(labels, use.processes)
        rows = zip(use.tenant.grants, use.used_bytes, use.overhead_bytes, strict=True)
        for grant, used_bytes, overhead_bytes in rows:
            values = [*labels, grant.uuid]
            families["gpushare_share_used_memory_bytes"].add_metric(values, used_bytes)
            families["gpushare_share_overhead_memory_bytes"].add_metric(values, overhead_bytes)
            families["gpushare_share_limit_memory_bytes"].add_metric(values, grant.memory_bytes)
            if (ratio := measured.get((grant.uuid, use.tenant.key))) is not None:
                families["gpushare_share_used_compute_ratio"].add_metric(values, ratio)
    yield from (*families.values(), processes, *turns.values())


def granted(node: GpuNode | None, *, node_name: str) -> Iterator[Metric]:
    """Yield the metrics of the ledger: what it gives each share on each GPU, and what shares have to shrink to."""
    families = gauges(_GRANTED)
    percent: collections.Counter[tuple[str, ...]] = collections.Counter()
    size: collections.Counter[tuple[str, ...]] = collections.Counter()

    def labels_of(entry: Allocation, share: GivenShare, uuid: str) -> tuple[str, ...]:
        return node_name, entry.pod.namespace, entry.pod.name, ",".join(share.containers), uuid

    for charge in _charges(node):
        labels = labels_of(charge.entry, charge.share, charge.gpu_uuid)
        percent[labels] += charge.share.request_percent
        size[labels] += charge.share.memory_bytes
    targets = {
        labels_of(entry, share, uuid): share.shrink_to_bytes
        for entry in (node.allocations if node is not None else ())
        for share in entry.shares
        for uuid in share.gpu_uuids
        if share.shrink_to_bytes is not None
    }
    for labels, request_percent in percent.items():
        families["gpushare_share_allocated_compute_ratio"].add_metric(labels, request_percent / 100)
        families["gpushare_share_allocated_memory_bytes"].add_metric(labels, size[labels])
    for labels, shrink_to_bytes in targets.items():
        families["gpushare_share_shrink_target_memory_bytes"].add_metric(labels, shrink_to_bytes)
    yield from families.values()


def allocation(node: GpuNode | None, holders: Iterable[DeviceHolder], *, node_name: str) -> Metric:
    """Return the metric of GPUs per container, in fractions of GPUs. A share is split evenly among its containers."""
    parts: dict[tuple[str, str, str], float] = collections.defaultdict(float)
    for charge in _charges(node):
        for container in charge.share.containers:
            key = charge.entry.pod.namespace, charge.entry.pod.name, container
            parts[key] += charge.part / len(charge.share.containers)
    for holder in holders:
        parts[holder.namespace, holder.pod, holder.container] += holder.part
    family = GaugeMetricFamily(
        "container_gpu_allocation",
        "GPUs that a container has; a share counts as the larger of its compute and memory parts of the GPU.",
        labels=["node", "namespace", "pod", "container"],
    )
    for labels, part in parts.items():
        family.add_metric([node_name, *labels], part)
    return family


def _labels(tenant: Tenant, node_name: str) -> list[str]:
    return [node_name, tenant.namespace, tenant.pod, ",".join(tenant.containers)]


def _charges(node: GpuNode | None) -> Iterator[ShareOnGpu]:
    """Yield the charges of pods, without reservations and backfill reservations: their pods may never appear."""
    charges = gpu_capacity.charges(node) if node is not None else ()
    return (charge for charge in charges if charge.entry.pod.uid and not charge.entry.is_backfill_reservation)
