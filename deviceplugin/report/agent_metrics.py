"""The agent's Prometheus metrics, collected at each scrape.

Every series belongs to a GPU, a share or a container, and disappears with it. The label `gpu` is a UUID.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.audit import node_audit
from deviceplugin.audit.node_audit import NodeAudit
from deviceplugin.report import share_metrics, share_peaks
from deviceplugin.report.share_metrics import DeviceHolder
from deviceplugin.report.share_peaks import Peak
from deviceplugin.state.node_state import Unreadable
from gpushare import contract, ledger
from gpushare.gpunode import Gpu, GpuNode

_OF_GPUS: Final = {
    "gpushare_gpu_memory_bytes": "Memory of a GPU.",
    "gpushare_gpu_healthy": "1 if a GPU is healthy.",
    "gpushare_gpu_cordoned": "1 if an administrator cordoned a GPU.",
    "gpushare_gpu_allocated_memory_bytes": "Memory that shares were given.",
    "gpushare_gpu_allocated_compute_ratio": "Compute that shares are guaranteed; 1 is the whole GPU.",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """The values of one scrape.

    gpus: the GPUs with their modes; unread: GPUs that could not be read; node: the GPUNode; uses, leases: the usage of
    shares; by_driver: as in `share_metrics.usage`; holders: the containers with devices; connections, turned_away:
    the arbiter's; versions: its connections by protocol version.
    """

    gpus: Sequence[Gpu] = ()
    unread: Sequence[Unreadable] = ()
    node: GpuNode | None = None
    uses: Sequence[ShareUse] = ()
    leases: Sequence[LeaseUsage] = ()
    by_driver: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    holders: Sequence[DeviceHolder] = ()
    audit: NodeAudit = dataclasses.field(default_factory=NodeAudit)
    peaks: Sequence[Peak] = ()
    connections: int = 0
    turned_away: int = 0
    versions: Mapping[int, int] = dataclasses.field(default_factory=dict)


class AgentCollector(Collector):
    """Collects the metrics of this node's GPUs, shares, containers and arbiter, and of its GPUNode's conditions."""

    def __init__(self, node_name: str, snapshot: Callable[[], MetricsSnapshot]) -> None:
        self.node_name, self._snapshot = node_name, snapshot

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics depend on the node."""
        return []

    def collect(self) -> Iterator[Metric]:
        now, name = self._snapshot(), self.node_name
        yield from self._gpus(now)
        yield from share_metrics.usage(now.uses, now.leases, now.by_driver, node_name=name)
        yield from share_metrics.granted(now.node, node_name=name)
        yield share_metrics.allocation(now.node, now.holders, node_name=name)
        yield self._containers(now.holders)
        yield self._conditions(now.node)
        yield from node_audit.figures(now.audit, node_name=name)
        yield from share_peaks.metrics(now.peaks, node_name=name)
        yield GaugeMetricFamily(
            "gpushare_arbiter_connections", "Processes connected to the arbiter.", value=now.connections
        )
        spoken = GaugeMetricFamily(
            "gpushare_arbiter_protocol_connections",
            "Processes connected to the arbiter, by the protocol version of their library.",
            labels=["version"],
        )
        for version in range(contract.WIRE_OLDEST, contract.WIRE_VERSION + 1):
            spoken.add_metric([str(version)], now.versions.get(version, 0))
        yield spoken
        yield CounterMetricFamily(
            "gpushare_arbiter_turned_away", "Connections that the arbiter rejected at once.", value=now.turned_away
        )

    def _gpus(self, now: MetricsSnapshot) -> Iterator[Metric]:
        labels = ["node", "gpu", "index", "model"]
        families = {name: GaugeMetricFamily(name, text, labels=labels) for name, text in _OF_GPUS.items()}
        modes = GaugeMetricFamily("gpushare_gpu_mode", "1 for the mode of a GPU.", labels=[*labels, "mode"])
        node = now.node
        used = ledger.use(node) if node is not None else {}
        for gpu in now.gpus:
            values = [self.node_name, gpu.uuid, str(gpu.index), gpu.model]
            held = used.get(gpu.uuid, ledger.NOTHING)
            if gpu.memory_bytes:
                families["gpushare_gpu_memory_bytes"].add_metric(values, gpu.memory_bytes)
            modes.add_metric([*values, str(gpu.mode)], 1.0)
            is_cordoned = node is not None and gpu.uuid in node.cordoned
            families["gpushare_gpu_healthy"].add_metric(values, float(gpu.healthy))
            families["gpushare_gpu_cordoned"].add_metric(values, float(is_cordoned))
            families["gpushare_gpu_allocated_memory_bytes"].add_metric(values, held.memory_bytes)
            families["gpushare_gpu_allocated_compute_ratio"].add_metric(values, held.request_percent / 100)
        for unreadable in now.unread:  # its UUID and its model are not known
            index = "" if unreadable.index is None else str(unreadable.index)
            families["gpushare_gpu_healthy"].add_metric([self.node_name, unreadable.bus_id, index, ""], 0.0)
        yield from (*families.values(), modes)

    def _conditions(self, node: GpuNode | None) -> Metric:
        family = GaugeMetricFamily(
            "gpushare_node_condition",
            "1 for the current status and reason of each condition of the GPUNode.",
            labels=["node", "condition", "status", "reason"],
        )
        for condition in node.conditions if node is not None else ():
            family.add_metric([self.node_name, condition.type, condition.status, condition.reason], 1.0)
        return family

    def _containers(self, holders: Iterable[DeviceHolder]) -> Metric:
        held = GaugeMetricFamily(
            "gpushare_container_devices",
            "Devices of a GPU that the kubelet gave to a container.",
            labels=["node", "namespace", "pod", "container", "resource", "gpu"],
        )
        for holder in holders:
            labels = [self.node_name, holder.namespace, holder.pod, holder.container, holder.resource, holder.gpu]
            held.add_metric(labels, holder.devices)
        return held
