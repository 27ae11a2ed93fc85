"""What Prometheus is told of who holds how much of a GPU. Pure.

`container_gpu_allocation` is what cost tools multiply by a price; beside it, what each share was given, whether it has
a process or not.

For a moment two pods of one name, the one that ends and the one that follows, may both hold a share: a series is made
of what they hold together.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from deviceplugin.report import share_figures
from deviceplugin.report.device_holders import DeviceHolder
from gpushare import accounting
from gpushare.accounting import ShareOnGpu
from gpushare.gpunode import GpuNode


def allocation(node: GpuNode | None, holders: Iterable[DeviceHolder], *, node_name: str) -> Metric:
    """GPUs that containers hold, in parts of GPUs. What containers share is split evenly between them."""
    parts: dict[tuple[str, str, str], float] = collections.defaultdict(float)
    for charge in _of_pods(node):
        for container in charge.share.containers:
            of = charge.entry.pod.namespace, charge.entry.pod.name, container
            parts[of] += charge.part / len(charge.share.containers)
    for holder in holders:
        parts[holder.namespace, holder.pod, holder.container] += holder.part
    family = GaugeMetricFamily(
        "container_gpu_allocation",
        "GPUs that a container holds: of a share the larger of its compute and its memory, as a part of the GPU.",
        labels=["node", "namespace", "pod", "container"],
    )
    for labels, part in parts.items():
        family.add_metric([node_name, *labels], part)
    return family


def grants(node: GpuNode | None, *, node_name: str) -> Iterator[Metric]:
    """What the ledger gives to each share on each GPU."""
    compute = GaugeMetricFamily(
        "gpushare_share_allocated_compute_ratio",
        "Compute that a share is guaranteed, as a part of its GPU.",
        labels=share_figures.LABELS,
    )
    memory = GaugeMetricFamily(
        "gpushare_share_allocated_memory_bytes", "Memory that a share was given.", labels=share_figures.LABELS
    )
    percent: collections.Counter[tuple[str, ...]] = collections.Counter()
    size: collections.Counter[tuple[str, ...]] = collections.Counter()
    for charge in _of_pods(node):
        pod, share = charge.entry.pod, charge.share
        labels = node_name, pod.namespace, pod.name, ",".join(share.containers), charge.gpu_uuid
        percent[labels] += share.request_percent
        size[labels] += share.memory_bytes
    for of, request_percent in percent.items():
        compute.add_metric(of, request_percent / 100)
        memory.add_metric(of, size[of])
    yield from (compute, memory)


def _of_pods(node: GpuNode | None) -> Iterator[ShareOnGpu]:
    """Without what is held for gated pods, and without reservations: their pods may never be."""
    for charge in accounting.charges(node) if node is not None else ():
        if charge.entry.pod.uid and not charge.entry.is_backfill_reservation:
            yield charge
