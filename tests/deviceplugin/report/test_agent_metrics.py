"""What a scrape says."""

from __future__ import annotations

import dataclasses

import prometheus_client
import pytest

from deviceplugin.arbiter.gpu_leases import LeaseUsage
from deviceplugin.arbiter.share_ledgers import ShareUse
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.audit.node_audit import AuditedShare as AuditedShare
from deviceplugin.audit.node_audit import NodeAudit
from deviceplugin.report import agent_metrics
from deviceplugin.report.device_holders import DeviceHolder
from deviceplugin.report.share_peaks import Peak
from deviceplugin.state.offer import Offer, Unreadable
from gpushare import contract, ledger
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Condition, GpuNode
from kubectl_gpushare.source import live_usage
from tests import builders, exposition


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    node = ledger.reserve(builders.node(gpus=2), builders.allocation("a", "GPU-node-a-0", request=30, memory_gib=8))
    ill = dataclasses.replace(node.gpus[1], healthy=False)
    tenant = Tenant("uid", "ml", "trainer", ("main", "side"), 0, (Grant("GPU-node-a-0", 8 << 30, 30, 100),))
    grants = tuple(Grant(f"GPU-node-a-{index}", 1 << 30, 30, 100) for index in range(2))
    alone = Tenant("other", "ml", "alone", ("main", "side"), 0, grants)
    made = prometheus_client.CollectorRegistry()
    made.register(
        agent_metrics.AgentCollector(
            node_name="node-a",
            offer=Offer((node.gpus[0], ill, dataclasses.replace(ill, uuid="GPU-spark", index=2, memory_bytes=0))),
            unread=lambda: [Unreadable(3, "GPU is lost")],
            node=lambda: node,
            uses=lambda: [
                ShareUse(tenant, (1 << 30,), 3, (300 << 20,)),
                ShareUse(alone, (0, 1 << 20), 1, (0, 0)),
            ],
            connections=lambda: 4,
            turned_away=lambda: 5,
            versions=lambda: {1: 1, 2: 3},
            leases=lambda: [
                LeaseUsage(tenant, "GPU-node-a-0", 12.5, 40, 0.25, 7.5, 2.5, 3),
                LeaseUsage(alone, "GPU-node-a-1", 60.0, 1, None),
            ],
            by_driver=lambda: {("GPU-node-a-0", tenant.key): 0.5, ("GPU-node-a-1", alone.key): 0.96},
            holders=lambda: [DeviceHolder("ml", "whole", "main", "nvidia.com/gpu", "GPU-node-a-1", 2)],
        )
    )
    return made


def test_a_gpu_is_told_with_what_is_held_of_it(registry: prometheus_client.CollectorRegistry) -> None:
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


def test_a_gpu_without_memory_information_has_no_series_for_it(registry: prometheus_client.CollectorRegistry) -> None:
    spark = {"node": "node-a", "gpu": "GPU-spark", "index": "2", "model": "NVIDIA A100-SXM4-80GB"}
    assert registry.get_sample_value("gpushare_gpu_healthy", spark) == 0
    assert registry.get_sample_value("gpushare_gpu_memory_bytes", spark) is None


def test_a_gpu_that_cannot_be_read_is_not_healthy(registry: prometheus_client.CollectorRegistry) -> None:
    unread = {"node": "node-a", "gpu": "", "index": "3", "model": ""}
    assert registry.get_sample_value("gpushare_gpu_healthy", unread) == 0


def test_a_share_is_told_with_what_its_processes_hold(registry: prometheus_client.CollectorRegistry) -> None:
    share = {"node": "node-a", "namespace": "ml", "pod": "trainer", "containers": "main,side"}
    gpu = {**share, "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_used_memory_bytes", gpu) == 1 << 30
    assert registry.get_sample_value("gpushare_share_overhead_memory_bytes", gpu) == 300 << 20
    assert registry.get_sample_value("gpushare_share_limit_memory_bytes", gpu) == 8 << 30
    assert registry.get_sample_value("gpushare_share_processes", share) == 3


def test_a_container_with_devices_is_told_with_the_gpu_that_they_are_on(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    labels = {"node": "node-a", "namespace": "ml", "pod": "whole", "container": "main", "resource": "nvidia.com/gpu"}
    assert registry.get_sample_value("gpushare_container_devices", {**labels, "gpu": "GPU-node-a-1"}) == 2
    gpu = {"node": "node-a", "gpu": "GPU-node-a-0", "index": "0", "model": "NVIDIA A100-SXM4-80GB"}
    assert registry.get_sample_value("gpushare_gpu_mode", {**gpu, "mode": "fractional"}) == 1


def test_a_share_is_told_with_the_time_it_had_its_gpu(registry: prometheus_client.CollectorRegistry) -> None:
    gpu = {"node": "node-a", "namespace": "ml", "pod": "trainer", "containers": "main,side", "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_lease_seconds_total", gpu) == 12.5
    assert registry.get_sample_value("gpushare_share_leases_total", gpu) == 40
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", gpu) == 0.25
    assert registry.get_sample_value("gpushare_share_waiting_seconds_total", gpu) == 7.5
    assert registry.get_sample_value("gpushare_share_throttled_seconds_total", gpu) == 2.5
    assert registry.get_sample_value("gpushare_share_evictions_total", gpu) == 3
    alone = {**gpu, "pod": "alone", "gpu": "GPU-node-a-1"}
    assert registry.get_sample_value("gpushare_share_lease_seconds_total", alone) == 60


def test_the_driver_measures_a_share_that_the_arbiter_does_not(registry: prometheus_client.CollectorRegistry) -> None:
    share = {"node": "node-a", "namespace": "ml", "containers": "main,side"}
    by_arbiter = {**share, "pod": "trainer", "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", by_arbiter) == 0.25
    by_driver = {**share, "pod": "alone", "gpu": "GPU-node-a-1"}
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", by_driver) == 0.96
    by_neither = {**by_driver, "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", by_neither) is None


def test_what_is_used_is_what_the_command_line_reads(registry: prometheus_client.CollectorRegistry) -> None:
    read = live_usage.parse({"node-a": prometheus_client.generate_latest(registry).decode()})
    assert read.of_pod("node-a", "ml", "trainer", ["GPU-node-a-0"]) == live_usage.Used(1 << 30, 25.0)
    given = live_usage.GivenDevices("ml", "whole", "main", "nvidia.com/gpu", 2)
    assert read.devices_of("node-a", "GPU-node-a-1") == (given,)
    assert read.devices_of("node-a", "GPU-node-a-0") == ()
    assert read.devices_of("node-b", "GPU-node-b-0") is None


def test_the_arbiter_counts(registry: prometheus_client.CollectorRegistry) -> None:
    assert registry.get_sample_value("gpushare_arbiter_connections") == 4
    assert registry.get_sample_value("gpushare_arbiter_turned_away_total") == 5
    spoken = [registry.get_sample_value("gpushare_arbiter_protocol_connections", {"version": digit}) for digit in "12"]
    assert spoken == [1, 3]


LABELS = (
    *("node", "gpu", "index", "model", "mode", "namespace", "pod", "containers", "container", "resource", "version"),
    *("condition", "status", "reason"),
)
# The one name that others have given: what cost tools look for.
FOREIGN = "container_gpu_allocation"


class Busy:
    """A node with so many shares, of two GPUs each, all of which are measured, audited and to shrink."""

    def __init__(self, shares: int) -> None:
        self.names = [f"pod-{number}" for number in range(shares)]
        self.registry = prometheus_client.CollectorRegistry()
        self.node = builders.node(gpus=2)
        self.uuids = tuple(gpu.uuid for gpu in self.node.gpus)
        grants = tuple(Grant(uuid, 1 << 30, 1, 100) for uuid in self.uuids)
        self.tenants = [Tenant(f"uid-{name}", "ml", name, ("main", "side"), 0, grants) for name in self.names]
        self.registry.register(
            agent_metrics.AgentCollector(
                node_name="node-a",
                offer=Offer(self.node.gpus),
                node=self.gpunode,
                uses=lambda: [ShareUse(tenant, (1, 2), 3, (4, 5)) for tenant in self.tenants],
                connections=lambda: len(self.tenants),
                turned_away=lambda: 0,
                holders=lambda: [
                    DeviceHolder("ml", tenant.pod, "main", "nvidia.com/gpu", self.uuids[0], 1)
                    for tenant in self.tenants
                ],
                leases=lambda: [
                    LeaseUsage(tenant, uuid, 1.0, 2, 0.5, 3.0, 4.0, 5) for tenant in self.tenants for uuid in self.uuids
                ],
                audit=lambda: NodeAudit(
                    self.node.gpus,
                    shares=tuple(
                        AuditedShare("ml", tenant.pod, tenant.containers, uuid, 1, 100, 1 << 30, processes=3)
                        for tenant in self.tenants
                        for uuid in self.uuids
                    ),
                ),
                peaked=lambda: [
                    Peak(tenant.pod_uid, "ml", tenant.pod, "main,side", uuid, 1, 0.5, 2.0)
                    for tenant in self.tenants
                    for uuid in self.uuids
                ],
            )
        )

    def gpunode(self) -> GpuNode:
        share = GivenShare(("main", "side"), self.uuids, 1, 100, 1 << 30, shrink_to_bytes=1 << 29)
        entries = (
            Allocation(f"of-{tenant.pod}", PodRef("ml", tenant.pod, tenant.pod_uid), (share,))
            for tenant in self.tenants
        )
        ready = Condition(contract.CONDITION_READY, "True", "GpusHealthy")
        return dataclasses.replace(self.node, allocations=tuple(entries), conditions=(ready,))


def test_every_metric_is_as_prometheus_wants_it() -> None:
    families = exposition.families(Busy(3).registry)
    assert list(exposition.faults({FOREIGN: families.pop(FOREIGN)}, prefix="container_gpu_", labels=LABELS)) == []
    assert list(exposition.faults(families, prefix="gpushare_", labels=LABELS)) == []
    assert all(family.samples for family in families.values()), "not all of them were tried"


def test_all_that_is_promised_is_told_of_each_share_and_gpu() -> None:
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


def test_there_are_as_many_series_as_gpus_and_shares_and_no_more_once_pods_have_ended() -> None:
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
    assert (with_20 - without) / 20 <= 38  # of a share of two GPUs, used by two containers
