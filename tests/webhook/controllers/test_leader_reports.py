"""Metrics of the leader about all GPUs and about waiting pods."""

from __future__ import annotations

import asyncio
import dataclasses

import prometheus_client
import pytest

from gpushare import gpu_capacity, ledger
from gpushare.gpunode import GpuNode
from gpushare.mix import Mix
from gpushare.refusal import Cause, Refusal, Rejected
from tests import builders, exposition
from webhook.controllers import queue
from webhook.controllers.leader_reports import ClusterFigures
from webhook.pods.stored_pod import Pod

MODEL = "NVIDIA A100-SXM4-80GB"


class Replica:
    def __init__(self) -> None:
        self.leads = True
        self.mix = Mix()
        self.nodes: list[GpuNode] = [builders.node("node-a"), builders.node("node-b", gpus=2)]
        self.registry = prometheus_client.CollectorRegistry()
        self.figures = ClusterFigures(leads=lambda: self.leads, nodes=lambda: self.nodes, mix=lambda: self.mix)
        self.registry.register(self.figures)

    def gpus(self, state: str) -> float | None:
        """Return the series as they are after a count."""
        asyncio.run(self.figures.count())
        return self.registry.get_sample_value("gpushare_placer_gpus", {"model": MODEL, "state": state})


def test_gpus_are_reported_by_use() -> None:
    replica = Replica()
    replica.nodes[0] = ledger.reserve(replica.nodes[0], builders.allocation("a", request=100, memory_gib=80))
    assert (replica.gpus("allocated"), replica.gpus("free"), replica.gpus("cordoned")) == (1, 5, 0)
    of_node = {"node": "node-b"}
    assert replica.registry.get_sample_value("gpushare_placer_node_gpus", of_node) == 2


def test_changed_node_or_mix_shows_in_the_next_scrape() -> None:
    replica = Replica()
    assert replica.gpus("free") == 6
    gpus = replica.nodes[0].gpus
    ill = (dataclasses.replace(gpus[0], healthy=False), *gpus[1:])
    replica.nodes[0] = dataclasses.replace(replica.nodes[0], gpus=ill)
    assert (replica.gpus("free"), replica.gpus("unhealthy")) == (5, 1)
    replica.nodes = replica.nodes[1:]
    assert (replica.gpus("free"), replica.gpus("unhealthy")) == (2, 0)


def test_a_node_that_has_not_changed_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    looked: list[str] = []
    divide = gpu_capacity.divide
    monkeypatch.setattr(gpu_capacity, "divide", lambda node, *more: looked.append(node.name) or divide(node, *more))
    replica.gpus("free")
    replica.nodes[1] = dataclasses.replace(replica.nodes[1], version="2")
    replica.gpus("free")
    assert looked == ["node-a", "node-b", "node-b"]
    replica.mix = Mix()
    replica.gpus("free")
    assert looked == ["node-a", "node-b", "node-b", "node-a", "node-b"]


async def test_other_tasks_run_while_many_nodes_are_counted() -> None:
    replica = Replica()
    replica.nodes = [builders.node(f"node-{number}", gpus=8) for number in range(200)]
    counting = asyncio.create_task(replica.figures.count())
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3


def test_only_the_leader_reports_figures() -> None:
    replica = Replica()
    assert replica.gpus("free") == 6
    replica.leads = False
    assert [family.samples for family in exposition.families(replica.registry).values()] == [[], []]


def test_every_metric_is_as_prometheus_wants_it() -> None:
    replica = Replica()
    assert replica.gpus("free")
    families = exposition.families(replica.registry)
    assert all(family.samples for family in families.values())
    assert list(exposition.faults(families, prefix="gpushare_placer_", labels=("model", "state", "node"))) == []


def pod(name: str, namespace: str = "ml", created: str = "2026-01-01T00:00:00Z") -> Pod:
    made = builders.pod(name, namespace=namespace, request="0.5")
    made["metadata"]["creationTimestamp"] = created
    return Pod.from_manifest(made)


def test_waiting_pods_are_counted_by_namespace_and_filter() -> None:
    far, near = Rejected("n", 0, "model", "is another", 5.0), Rejected("n", 1, "memory", "has 1Gi free", 0.2)
    refusals = [
        (pod("a"), Refusal("…", (far, near))),
        (pod("b"), Refusal("…", (near,))),
        (pod("c"), Refusal("…", cause=Cause.GROUP)),
        (pod("d", "other"), Refusal("…", (far,), Cause.HOLD)),
    ]
    assert queue.counts(refusals) == {("ml", "memory"): 2, ("ml", "group"): 1, ("other", "hold"): 1}


def test_longest_wait_is_the_age_of_the_oldest_pod() -> None:
    pods = [pod("a", created="1970-01-01T00:01:40Z"), pod("b", created="1970-01-01T00:03:20Z"), pod("c", created="?")]
    assert queue.longest_seconds(pods, now=300.0) == 200.0
    assert queue.longest_seconds([], now=300.0) == 0.0
