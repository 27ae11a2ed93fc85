"""What a scrape says."""

from __future__ import annotations

import dataclasses

import prometheus_client
import pytest

from deviceplugin import metrics
from deviceplugin.arbiter.groups import Use
from deviceplugin.arbiter.leases import Held
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.offer import Offer
from gpushare import ledger
from kubectl_gpushare.source import usage
from tests import builders


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    node = ledger.reserve(builders.node(gpus=2), builders.allocation("a", "GPU-node-a-0", request=30, memory_gib=8))
    ill = dataclasses.replace(node.gpus[1], healthy=False)
    tenant = Tenant("uid", "ml", "trainer", ("main", "side"), 0, (Grant("GPU-node-a-0", 8 << 30, 30, 100),))
    made = prometheus_client.CollectorRegistry()
    made.register(
        metrics.AgentCollector(
            node_name="node-a",
            offer=Offer((node.gpus[0], ill)),
            node=lambda: node,
            uses=lambda: [Use(tenant, (1 << 30,), 3, (300 << 20,))],
            connections=lambda: 4,
            turned_away=lambda: 5,
            leases=lambda: [
                Held(tenant, "GPU-node-a-0", 12.5, 40, 0.25),
                Held(dataclasses.replace(tenant, pod="alone"), "GPU-node-a-1", 60.0, 1, None),
            ],
            holders=lambda: [metrics.Holder("ml", "whole", "main", "nvidia.com/gpu", "GPU-node-a-1", 2)],
        )
    )
    return made


def test_a_gpu_is_told_with_what_is_held_of_it(registry: prometheus_client.CollectorRegistry) -> None:
    labels = {"node": "node-a", "gpu": "GPU-node-a-0", "index": "0", "model": "NVIDIA A100-SXM4-80GB"}
    found = {
        name: registry.get_sample_value(f"gpushare_gpu_{name}", labels)
        for name in ("memory_bytes", "healthy", "allocated_memory_bytes", "allocated_compute_ratio")
    }
    assert found == {
        "memory_bytes": 80 << 30,
        "healthy": 1,
        "allocated_memory_bytes": 8 << 30,
        "allocated_compute_ratio": 0.3,
    }
    other = {**labels, "gpu": "GPU-node-a-1", "index": "1"}
    assert registry.get_sample_value("gpushare_gpu_healthy", other) == 0
    assert registry.get_sample_value("gpushare_gpu_allocated_memory_bytes", other) == 0


def test_a_share_is_told_with_what_its_processes_hold(registry: prometheus_client.CollectorRegistry) -> None:
    share = {"node": "node-a", "namespace": "ml", "pod": "trainer", "containers": "main,side"}
    card = {**share, "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_used_memory_bytes", card) == 1 << 30
    assert registry.get_sample_value("gpushare_share_overhead_memory_bytes", card) == 300 << 20
    assert registry.get_sample_value("gpushare_share_limit_memory_bytes", card) == 8 << 30
    assert registry.get_sample_value("gpushare_share_processes", share) == 3


def test_a_container_with_devices_is_told_with_the_gpu_that_they_are_on(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    labels = {"node": "node-a", "namespace": "ml", "pod": "whole", "container": "main", "resource": "nvidia.com/gpu"}
    assert registry.get_sample_value("gpushare_container_devices", {**labels, "gpu": "GPU-node-a-1"}) == 2
    card = {"node": "node-a", "gpu": "GPU-node-a-0", "index": "0", "model": "NVIDIA A100-SXM4-80GB"}
    assert registry.get_sample_value("gpushare_gpu_mode", {**card, "mode": "fractional"}) == 1


def test_a_share_is_told_with_the_time_it_had_its_gpu(registry: prometheus_client.CollectorRegistry) -> None:
    card = {"node": "node-a", "namespace": "ml", "pod": "trainer", "containers": "main,side", "gpu": "GPU-node-a-0"}
    assert registry.get_sample_value("gpushare_share_lease_seconds_total", card) == 12.5
    assert registry.get_sample_value("gpushare_share_leases_total", card) == 40
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", card) == 0.25
    alone = {**card, "pod": "alone", "gpu": "GPU-node-a-1"}
    assert registry.get_sample_value("gpushare_share_lease_seconds_total", alone) == 60
    assert registry.get_sample_value("gpushare_share_used_compute_ratio", alone) is None


def test_what_is_used_is_what_the_command_line_reads(registry: prometheus_client.CollectorRegistry) -> None:
    read = usage.of({"node-a": prometheus_client.generate_latest(registry).decode()})
    assert read.of_pod("node-a", "ml", "trainer", ["GPU-node-a-0"]) == usage.Used(1 << 30, 25.0)


def test_the_arbiter_counts(registry: prometheus_client.CollectorRegistry) -> None:
    assert registry.get_sample_value("gpushare_arbiter_connections") == 4
    assert registry.get_sample_value("gpushare_arbiter_turned_away_total") == 5


def test_it_can_be_written_as_text(registry: prometheus_client.CollectorRegistry) -> None:
    assert b"gpushare_gpu_memory_bytes{" in prometheus_client.generate_latest(registry)
