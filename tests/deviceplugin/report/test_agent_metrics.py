"""The metrics of a scrape."""

from __future__ import annotations

import dataclasses
from typing import Any

import prometheus_client
import pytest

from deviceplugin.arbiter.scheduling.leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.audit.node_audit import AuditedShare as AuditedShare
from deviceplugin.audit.node_audit import NodeAudit
from deviceplugin.report import agent_metrics
from deviceplugin.report.share_metrics import DeviceHolder
from deviceplugin.report.share_peaks import Peak
from deviceplugin.state.node_state import Unreadable
from gpushare import contract, ledger
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Condition, GpuNode
from kubectl_gpushare.source import live_usage
from tests import builders, exposition


def collector(**values: Any) -> agent_metrics.AgentCollector:
    return agent_metrics.AgentCollector("node-a", lambda: agent_metrics.MetricsSnapshot(**values))


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    node = ledger.reserve(builders.node(gpus=2), builders.allocation("a", "GPU-node-a-0", request=30, memory_gib=8))
    ill = dataclasses.replace(node.gpus[1], healthy=False)
    tenant = Tenant("uid", "ml", "trainer", ("main", "side"), 0, (Grant("GPU-node-a-0", 8 << 30, 30, 100),))
    grants = tuple(Grant(f"GPU-node-a-{index}", 1 << 30, 30, 100) for index in range(2))
    alone = Tenant("other", "ml", "alone", ("main", "side"), 0, grants)
    made = prometheus_client.CollectorRegistry()
    made.register(
        collector(
            gpus=(node.gpus[0], ill, dataclasses.replace(ill, uuid="GPU-spark", index=2, memory_bytes=0)),
            unread=[Unreadable(3, "GPU is lost")],
            node=node,
            uses=[
                ShareUse(tenant, (1 << 30,), 3, (300 << 20,)),
                ShareUse(alone, (0, 1 << 20), 1, (0, 0)),
            ],
            connections=4,
            turned_away=5,
            versions={1: 1, 2: 3},
            leases=[
                LeaseUsage(tenant, "GPU-node-a-0", 12.5, 40, 0.25, 7.5, 2.5, 3),
                LeaseUsage(alone, "GPU-node-a-1", 60.0, 1, None),
            ],
            by_driver={("GPU-node-a-0", tenant.key): 0.5, ("GPU-node-a-1", alone.key): 0.96},
            holders=[DeviceHolder("ml", "whole", "main", "nvidia.com/gpu", "GPU-node-a-1", 2)],
        )
    )
    return made


def test_a_gpu_has_metrics_of_its_capacity_and_its_allocations(registry: prometheus_client.CollectorRegistry) -> None:
    labels = {"node": "node-a", "gpu": "GPU-node-a-0", "index": "0", "model": "NVIDIA A100-SXM4-80GB"}
    samples = {
        name: registry.get_sample_value(f"gpushare_gpu_{name}", labels)
        for name in ("memory_bytes", "healthy", "allocated_memory_bytes", "allocated_compute_ratio")
    }
    assert samples == {
        "memory_bytes": 80 << 30,
        "healthy": 1,
        "allocated_memory_bytes": 8 << 30,
        "allocated_compute_ratio": 0.3,
    }
    other = {**labels, "gpu": "GPU-node-a-1", "index": "1"}
    assert registry.get_sample_value("gpushare_gpu_healthy", other) == 0
    assert registry.get_sample_value("gpushare_gpu_allocated_memory_bytes", other) == 0


def test_a_gpu_without_memory_information_has_no_memory_metric(registry: prometheus_client.CollectorRegistry) -> None:
    spark = {"node": "node-a", "gpu": "GPU-spark", "index": "2", "model": "NVIDIA A100-SXM4-80GB"}
    assert registry.get_sample_value("gpushare_gpu_healthy", spark) == 0
    assert registry.get_sample_value("gpushare_gpu_memory_bytes", spark) is None


def test_an_unreadable_gpu_is_unhealthy(registry: prometheus_client.CollectorRegistry) -> None:
    unread = {"node": "node-a", "gpu": "", "index": "3", "model": ""}
    assert registry.get_sample_value("gpushare_gpu_healthy", unread) == 0


def test_a_share_has_metrics_of_its_memory_and_processes(registry: prometheus_client.CollectorRegistry) -> None:
    share = {"node": "node-a", "namespace": "ml", "pod": "trainer", "containers": "main,side"}
    gpu = {**share, "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_used_memory_bytes", gpu) == 1 << 30
    assert registry.get_sample_value("gpushare_share_overhead_memory_bytes", gpu) == 300 << 20
    assert registry.get_sample_value("gpushare_share_limit_memory_bytes", gpu) == 8 << 30
    assert registry.get_sample_value("gpushare_share_processes", share) == 3


def test_a_container_with_devices_has_a_metric_per_gpu(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    labels = {"node": "node-a", "namespace": "ml", "pod": "whole", "container": "main", "resource": "nvidia.com/gpu"}
    assert registry.get_sample_value("gpushare_container_devices", {**labels, "gpu": "GPU-node-a-1"}) == 2
    gpu = {"node": "node-a", "gpu": "GPU-node-a-0", "index": "0", "model": "NVIDIA A100-SXM4-80GB"}
    assert registry.get_sample_value("gpushare_gpu_mode", {**gpu, "mode": "fractional"}) == 1


def test_a_share_has_metrics_of_its_leases(registry: prometheus_client.CollectorRegistry) -> None:
    gpu = {"node": "node-a", "namespace": "ml", "pod": "trainer", "containers": "main,side", "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_lease_seconds_total", gpu) == 12.5
    assert registry.get_sample_value("gpushare_share_leases_total", gpu) == 40
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", gpu) == 0.25
    assert registry.get_sample_value("gpushare_share_waiting_seconds_total", gpu) == 7.5
    assert registry.get_sample_value("gpushare_share_throttled_seconds_total", gpu) == 2.5
    assert registry.get_sample_value("gpushare_share_evictions_total", gpu) == 3
    alone = {**gpu, "pod": "alone", "gpu": "GPU-node-a-1"}
    assert registry.get_sample_value("gpushare_share_lease_seconds_total", alone) == 60


def test_the_driver_measures_shares_that_the_arbiter_does_not(registry: prometheus_client.CollectorRegistry) -> None:
    share = {"node": "node-a", "namespace": "ml", "containers": "main,side"}
    by_arbiter = {**share, "pod": "trainer", "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", by_arbiter) == 0.25
    by_driver = {**share, "pod": "alone", "gpu": "GPU-node-a-1"}
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", by_driver) == 0.96
    by_neither = {**by_driver, "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", by_neither) is None


def test_the_command_line_reads_these_metrics(registry: prometheus_client.CollectorRegistry) -> None:
    read = live_usage.parse({"node-a": prometheus_client.generate_latest(registry).decode()})
    assert read.of_pod("node-a", "ml", "trainer", ["GPU-node-a-0"]) == live_usage.Used(1 << 30, 25.0)
    given = live_usage.GivenDevices("ml", "whole", "main", "nvidia.com/gpu", 2)
    assert read.devices_of("node-a", "GPU-node-a-1") == (given,)
    assert read.devices_of("node-a", "GPU-node-a-0") == ()
    assert read.devices_of("node-b", "GPU-node-b-0") is None


def test_the_arbiters_connections_are_counted(registry: prometheus_client.CollectorRegistry) -> None:
    assert registry.get_sample_value("gpushare_arbiter_connections") == 4
    assert registry.get_sample_value("gpushare_arbiter_turned_away_total") == 5
    spoken = [registry.get_sample_value("gpushare_arbiter_protocol_connections", {"version": digit}) for digit in "12"]
    assert spoken == [1, 3]


LABELS = (
    *("node", "gpu", "index", "model", "mode", "namespace", "pod", "containers", "container", "resource", "version"),
    *("condition", "status", "reason"),
)
# The only metric without our prefix: cost tools look for this name.
FOREIGN = "container_gpu_allocation"


class Busy:
    """A node with a number of shares of two GPUs each, all of which are measured, audited and shrinking."""

    def __init__(self, shares: int) -> None:
        self.names = [f"pod-{number}" for number in range(shares)]
        self.registry = prometheus_client.CollectorRegistry()
        self.node = builders.node(gpus=2)
        self.uuids = tuple(gpu.uuid for gpu in self.node.gpus)
        grants = tuple(Grant(uuid, 1 << 30, 1, 100) for uuid in self.uuids)
        self.tenants = [Tenant(f"uid-{name}", "ml", name, ("main", "side"), 0, grants) for name in self.names]
        self.registry.register(agent_metrics.AgentCollector("node-a", self.snapshot))

    def snapshot(self) -> agent_metrics.MetricsSnapshot:
        pairs = [(tenant, uuid) for tenant in self.tenants for uuid in self.uuids]
        return agent_metrics.MetricsSnapshot(
            gpus=self.node.gpus,
            node=self.gpunode(),
            uses=[ShareUse(tenant, (1, 2), 3, (4, 5)) for tenant in self.tenants],
            leases=[LeaseUsage(tenant, uuid, 1.0, 2, 0.5, 3.0, 4.0, 5) for tenant, uuid in pairs],
            holders=[
                DeviceHolder("ml", tenant.pod, "main", "nvidia.com/gpu", self.uuids[0], 1) for tenant in self.tenants
            ],
            audit=NodeAudit(
                self.node.gpus,
                shares=tuple(
                    AuditedShare("ml", tenant.pod, tenant.containers, uuid, 1, 100, 1 << 30, processes=3)
                    for tenant, uuid in pairs
                ),
            ),
            peaks=[Peak(tenant.pod_uid, "ml", tenant.pod, "main,side", uuid, 1, 0.5, 2.0) for tenant, uuid in pairs],
            connections=len(self.tenants),
        )

    def gpunode(self) -> GpuNode:
        share = GivenShare(("main", "side"), self.uuids, 1, 100, 1 << 30, shrink_to_bytes=1 << 29)
        entries = (
            Allocation(f"of-{tenant.pod}", PodRef("ml", tenant.pod, tenant.pod_uid), (share,))
            for tenant in self.tenants
        )
        ready = Condition(contract.CONDITION_READY, "True", "GpusHealthy")
        return dataclasses.replace(self.node, allocations=tuple(entries), conditions=(ready,))


def test_every_metric_follows_prometheus_conventions() -> None:
    families = exposition.families(Busy(3).registry)
    assert list(exposition.faults({FOREIGN: families.pop(FOREIGN)}, prefix="container_gpu_", labels=LABELS)) == []
    assert list(exposition.faults(families, prefix="gpushare_", labels=LABELS)) == []
    assert all(family.samples for family in families.values()), "not all of them were tried"


def test_each_share_and_gpu_has_all_documented_metrics() -> None:
    families = exposition.families(Busy(3).registry)
    per_gpu = {name for name, family in families.items() if {"gpu", "index"} <= family.samples[0].labels.keys()}
    assert per_gpu == {
        f"gpushare_gpu_{what}"
        for what in (
            *("memory_bytes", "allocated_memory_bytes", "allocated_compute_ratio", "healthy", "mode", "cordoned"),
            *("unlimited_processes", "foreign_processes"),
        )
    }
    per_share = {name for name, family in families.items() if "containers" in family.samples[0].labels}
    assert per_share == {
        f"gpushare_share_{what}"
        for what in (
            *("used_memory_bytes", "overhead_memory_bytes", "limit_memory_bytes", "beyond_limit_memory_bytes"),
            *("shrink_target_memory_bytes", "peak_memory_bytes", "peak_compute_ratio", "observed_seconds"),
            *("lease_seconds", "leases", "waiting_seconds", "throttled_seconds", "evictions"),
            *("used_compute_ratio", "beyond_limit_compute_ratio", "processes"),
            *("allocated_compute_ratio", "allocated_memory_bytes"),
        )
    }


def test_series_grow_with_gpus_and_shares_and_end_with_their_pods() -> None:
    node = Busy(40)

    def series() -> int:
        return sum(len(family.samples) for family in exposition.families(node.registry).values())

    with_40 = series()
    node.tenants = node.tenants[:20]
    with_20 = series()
    node.tenants = []
    without = series()
    assert with_40 - with_20 == with_20 - without
    text = prometheus_client.generate_latest(node.registry).decode()
    assert not [name for name in node.names if f'"{name}"' in text]
    assert (with_20 - without) / 20 <= 38  # for a share of two GPUs with two containers
