"""The audit for Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from deviceplugin.audit.node_audit import LimitState, NodeAudit


def figures(audit: NodeAudit, *, node_name: str) -> Iterator[Metric]:
    """What is to be alerted on."""
    labels = ["node", "gpu", "index", "model"]
    unlimited = GaugeMetricFamily(
        "gpushare_gpu_unlimited_processes",
        "Processes of share containers that run without their limits, seen twice in a row.",
        labels=labels,
    )
    foreign = GaugeMetricFamily(
        "gpushare_gpu_foreign_processes",
        "Processes on a fractional GPU that belong to no share, seen twice in a row.",
        labels=labels,
    )
    for gpu in audit.gpus:
        values = [node_name, gpu.uuid, str(gpu.index), gpu.model]
        for metric, state in ((unlimited, LimitState.UNLIMITED), (foreign, LimitState.FOREIGN)):
            metric.add_metric(values, sum(process.process.gpu == gpu.uuid for process in audit.of(state)))
    beyond = GaugeMetricFamily(
        "gpushare_share_beyond_limit_memory_bytes",
        "By how much what is counted exceeds a share's limit; it is granted nothing while this is not 0.",
        labels=["node", "namespace", "pod", "containers", "gpu"],
    )
    compute = GaugeMetricFamily(
        "gpushare_share_beyond_limit_compute_ratio",
        "Part of a GPU's time that a share uses beyond what the arbiter lets it have, by the driver; 1 is all of it.",
        labels=["node", "namespace", "pod", "containers", "gpu"],
    )
    for share in audit.shares:
        if share.processes:
            of = [node_name, share.namespace, share.pod, ",".join(share.containers), share.gpu]
            beyond.add_metric(of, share.beyond_bytes)
            compute.add_metric(of, share.beyond.used - share.beyond.let if share.beyond is not None else 0.0)
    complete = GaugeMetricFamily(
        "gpushare_audit_complete", "1 if the last audit could see everything; /audit says why not.", labels=["node"]
    )
    complete.add_metric([node_name], float(not audit.problems))
    yield from (unlimited, foreign, beyond, compute, complete)
