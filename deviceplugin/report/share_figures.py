"""What Prometheus is told of each share on each GPU: memory, compute, and what it is to give up. Pure.

A share is used by its `containers` together, which are named joined by commas. One without a process has no figures but
what it is to shrink to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from deviceplugin.arbiter.ledgers.share_ledgers import ShareUse
from deviceplugin.arbiter.scheduling.gpu_leases import LeaseUsage
from deviceplugin.arbiter.tenant import Tenant
from gpushare.gpunode import GpuNode

LABELS: Final = ("node", "namespace", "pod", "containers", "gpu")

# By the field of `LeaseUsage`, what is counted of a share's turns.
_TURNS: Final = {
    "seconds": (
        "gpushare_share_lease_seconds",
        "Time for which a share had its GPU, used or not, since its first process came.",
    ),
    "leases": ("gpushare_share_leases", "How often a share was given its GPU, since its first process came."),
    "waited_seconds": (
        "gpushare_share_waiting_seconds",
        "Time for which a share had something to launch and not its GPU, since its first process came.",
    ),
    "throttled_seconds": (
        "gpushare_share_throttled_seconds",
        "The part of the time it waited in which a share was kept back by its own limit.",
    ),
    "evictions": (
        "gpushare_share_evictions",
        "How often a share did not give its GPU back in time, and others were let in beside it.",
    ),
}


def memory(uses: Iterable[ShareUse], *, node_name: str) -> Iterator[Metric]:
    """What the processes of shares hold."""
    used = GaugeMetricFamily(
        "gpushare_share_used_memory_bytes", "Memory that a share's processes have charged.", labels=LABELS
    )
    overhead = GaugeMetricFamily(
        "gpushare_share_overhead_memory_bytes",
        "Memory that a share's processes hold beyond what they have charged: contexts, modules.",
        labels=LABELS,
    )
    limit = GaugeMetricFamily("gpushare_share_limit_memory_bytes", "Memory that a share may hold.", labels=LABELS)
    processes = GaugeMetricFamily("gpushare_share_processes", "Processes that use a share.", labels=LABELS[:-1])
    for use in uses:
        processes.add_metric(_of(use.tenant, node_name), use.processes)
        for grant, used_bytes, beyond in zip(use.tenant.grants, use.used_bytes, use.overhead_bytes, strict=True):
            values = [*_of(use.tenant, node_name), grant.uuid]
            used.add_metric(values, used_bytes)
            overhead.add_metric(values, beyond)
            limit.add_metric(values, grant.memory_bytes)
    yield from (used, overhead, limit, processes)


def compute(
    held: Iterable[LeaseUsage],
    uses: Iterable[ShareUse],
    by_driver: Mapping[tuple[str, str], float],
    *,
    node_name: str,
) -> Iterator[Metric]:
    """The metrics of compute: leases, time waited and time used.

    by_driver: the time used by the UUID of a GPU and the key of a share, for shares that the arbiter does not measure.
    """
    counted = {field: CounterMetricFamily(*texts, labels=LABELS) for field, texts in _TURNS.items()}
    used = GaugeMetricFamily(
        "gpushare_share_used_compute_ratio",
        "Part of about the last ten seconds in which a share used its GPU; absent if it was not measured.",
        labels=LABELS,
    )
    measured = dict(by_driver)
    for lease in held:
        values = [*_of(lease.tenant, node_name), lease.gpu_uuid]
        for field, metric in counted.items():
            metric.add_metric(values, getattr(lease, field))
        if lease.recent is not None:
            measured[lease.gpu_uuid, lease.tenant.key] = lease.recent
    for use in uses:
        for grant in use.tenant.grants:
            if (ratio := measured.get((grant.uuid, use.tenant.key))) is not None:
                used.add_metric([*_of(use.tenant, node_name), grant.uuid], ratio)
    yield from (*counted.values(), used)


def shrinking(node: GpuNode | None, *, node_name: str) -> Iterator[Metric]:
    """Shares that are to become smaller, and have yet to."""
    target = GaugeMetricFamily(
        "gpushare_share_shrink_target_memory_bytes",
        "Memory that a share is to shrink to; absent once it has, and when it is not to.",
        labels=LABELS,
    )
    # By labels: for a moment two pods of one name, the one that ends and the one that follows, may both hold a share.
    targets: dict[tuple[str, ...], int] = {}
    for entry in node.allocations if node is not None else ():
        for share in entry.shares:
            if share.shrink_to_bytes is not None:
                of = node_name, entry.pod.namespace, entry.pod.name, ",".join(share.containers)
                targets |= {(*of, uuid): share.shrink_to_bytes for uuid in share.gpu_uuids}
    for labels, shrink_to_bytes in targets.items():
        target.add_metric(labels, shrink_to_bytes)
    yield target


def _of(tenant: Tenant, node_name: str) -> list[str]:
    return [node_name, tenant.namespace, tenant.pod, ",".join(tenant.containers)]
