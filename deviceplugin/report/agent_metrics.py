"""What Prometheus is told: read at each scrape from the offer, from the pages of the shares, and from what the arbiter
reported last.

Every series belongs to a GPU, a share or a container that is there now, and goes with it. Labels: `gpu` is a UUID.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceplugin.arbiter.ledgers.share_ledgers import ShareUse
from deviceplugin.arbiter.scheduling.gpu_leases import LeaseUsage
from deviceplugin.audit import audit_metrics
from deviceplugin.audit.node_audit import NodeAudit
from deviceplugin.report import charges, share_figures, share_peaks
from deviceplugin.report.device_holders import DeviceHolder
from deviceplugin.report.share_peaks import Peak
from deviceplugin.state.offer import Offer, Unreadable
from gpushare import contract, ledger
from gpushare.gpunode import GpuNode


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AgentCollector(Collector):
    """Prometheus metrics of this node: what its GPUs give, who holds it, and the conditions of its GPUNode."""

    node_name: str
    offer: Offer
    node: Callable[[], GpuNode | None]
    uses: Callable[[], Iterable[ShareUse]]
    connections: Callable[[], int]
    turned_away: Callable[[], int]
    unread: Callable[[], Iterable[Unreadable]] = tuple
    versions: Callable[[], Mapping[int, int]] = dict
    holders: Callable[[], Iterable[DeviceHolder]] = tuple
    leases: Callable[[], Iterable[LeaseUsage]] = tuple
    audit: Callable[[], NodeAudit] = NodeAudit
    by_driver: Callable[[], Mapping[tuple[str, str], float]] = dict
    peaked: Callable[[], Iterable[Peak]] = tuple

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: what there is depends on the node."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        yield from self._gpus()
        uses = tuple(self.uses())
        yield from share_figures.memory(uses, node_name=self.node_name)
        yield from share_figures.compute(self.leases(), uses, self.by_driver(), node_name=self.node_name)
        yield from share_figures.shrinking(self.node(), node_name=self.node_name)
        yield from charges.grants(self.node(), node_name=self.node_name)
        holders = tuple(self.holders())
        yield charges.allocation(self.node(), holders, node_name=self.node_name)
        yield self._containers(holders)
        yield self._conditions()
        yield from audit_metrics.figures(self.audit(), node_name=self.node_name)
        yield from share_peaks.figures(self.peaked(), node_name=self.node_name)
        yield GaugeMetricFamily(
            "gpushare_arbiter_connections", "Processes connected to the arbiter.", value=self.connections()
        )
        yield self._protocol()
        yield CounterMetricFamily(
            "gpushare_arbiter_turned_away",
            "Connections that the arbiter turned away at once.",
            value=self.turned_away(),
        )

    def _gpus(self) -> Iterator[Metric]:
        labels = ["node", "gpu", "index", "model"]
        memory = GaugeMetricFamily("gpushare_gpu_memory_bytes", "Memory of a GPU.", labels=labels)
        cordoned = GaugeMetricFamily(
            "gpushare_gpu_cordoned", "1 if an administrator wants nothing new on a GPU.", labels=labels
        )
        healthy = GaugeMetricFamily("gpushare_gpu_healthy", "1 if a GPU is healthy.", labels=labels)
        allocated = GaugeMetricFamily(
            "gpushare_gpu_allocated_memory_bytes", "Memory that shares were given.", labels=labels
        )
        compute = GaugeMetricFamily(
            "gpushare_gpu_allocated_compute_ratio", "Compute that shares are guaranteed, 1 is the GPU.", labels=labels
        )
        modes = GaugeMetricFamily("gpushare_gpu_mode", "1 for the mode of a GPU.", labels=[*labels, "mode"])
        node = self.node()
        used = ledger.use(node) if node is not None else {}
        for gpu in self.offer.gpus:
            values = [self.node_name, gpu.uuid, str(gpu.index), gpu.model]
            held = used.get(gpu.uuid, ledger.NOTHING)
            if gpu.memory_bytes:
                memory.add_metric(values, gpu.memory_bytes)
            modes.add_metric([*values, str(gpu.mode)], 1.0)
            healthy.add_metric(values, float(gpu.healthy))
            cordoned.add_metric(values, float(node is not None and gpu.uuid in node.cordoned))
            allocated.add_metric(values, held.memory_bytes)
            compute.add_metric(values, held.request_percent / 100)
        for unreadable in self.unread():  # its UUID and its model are not known
            healthy.add_metric(
                [self.node_name, unreadable.bus_id, "" if unreadable.index is None else str(unreadable.index), ""], 0.0
            )
        yield from (memory, healthy, cordoned, allocated, compute, modes)

    def _protocol(self) -> Metric:
        spoken = GaugeMetricFamily(
            "gpushare_arbiter_protocol_connections",
            "Processes connected to the arbiter, by the version of the protocol that their library speaks with it.",
            labels=["version"],
        )
        connections = self.versions()
        for version in range(contract.WIRE_OLDEST, contract.WIRE_VERSION + 1):
            spoken.add_metric([str(version)], connections.get(version, 0))
        return spoken

    def _conditions(self) -> Metric:
        labels = ["node", "condition", "status", "reason"]
        family = GaugeMetricFamily(
            "gpushare_node_condition", "1 for what each condition of the GPUNode says now.", labels=labels
        )
        node = self.node()
        for condition in node.conditions if node is not None else ():
            family.add_metric([self.node_name, condition.type, condition.status, condition.reason], 1.0)
        return family

    def _containers(self, holders: Iterable[DeviceHolder]) -> Metric:
        labels = ["node", "namespace", "pod", "container", "resource", "gpu"]
        held = GaugeMetricFamily(
            "gpushare_container_devices", "Devices of a GPU that the kubelet gave to a container.", labels=labels
        )
        for holder in holders:
            held.add_metric(
                [self.node_name, holder.namespace, holder.pod, holder.container, holder.resource, holder.gpu],
                holder.devices,
            )
        return held
