"""Known defects of other GPU sharers: half GPUs piled up, a GPU's memory given twice, minutes for a burst."""

from __future__ import annotations

import collections
import time

import pytest

from gpushare import contract, ledger
from tests import builders
from tests.webhook.chaos import crowd, witness
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

FORTY_PODS_SECONDS = 40.0


def reasons(cluster: Cluster) -> list[str]:
    """Return the reasons of the waiting pods."""
    annotations = [pod["metadata"]["annotations"] for pod in cluster.pods()]
    return [notes[contract.REASON] for notes in annotations if contract.REASON in notes]


async def test_sixteen_halves_at_once_are_two_on_each_of_eight_gpus(cluster: Cluster) -> None:
    cluster.delete_gpunode()
    cluster.administrator.delete("/api/v1/nodes/node-a")
    cluster.add_node(builders.node("node-b", gpus=8))
    cluster.start()
    cluster.start()
    async with witness.watching(cluster.administrator.kubeconfig):
        made = await crowd.create(cluster, crowd.pods(16, request="0.5"))
        assert [outcome for outcome in made if isinstance(outcome, BaseException)] == []
        crowd.settled(cluster, "node-b", count=16)
    uuids = [pod["metadata"]["annotations"][contract.GPU_UUIDS] for pod in crowd.placed(cluster)]
    assert sorted(collections.Counter(uuids).values()) == [2] * 8


async def test_the_third_of_three_12_gib_pods_waits_for_a_24_gib_gpu(cluster: Cluster) -> None:
    cluster.delete_gpunode()
    cluster.administrator.delete("/api/v1/nodes/node-a")
    cluster.add_node(builders.node("node-b", gpus=1, memory_gib=24))
    cluster.start()
    cluster.start()
    async with witness.watching(cluster.administrator.kubeconfig):
        await crowd.create(cluster, crowd.pods(3, memory="12Gi"))
        crowd.settled(cluster, "node-b", count=2)
        # The first reason may be that the ledger could not be written in time.
        until(lambda: ["0 of 24Gi" in reason for reason in reasons(cluster)] == [True], cluster.explain)
        cluster.delete(crowd.placed(cluster)[0]["metadata"]["name"])
        crowd.settled(cluster, "node-b", count=2)


async def test_forty_pods_at_once_on_one_node_take_seconds(cluster: Cluster) -> None:
    cluster.start()
    cluster.start()
    async with witness.watching(cluster.administrator.kubeconfig):
        started = time.monotonic()
        await crowd.create(cluster, crowd.pods(40, request="0.1", memory="2Gi"), at_once=40)
        seconds = time.monotonic() - started
        crowd.settled(cluster, count=40)
    used = ledger.use(cluster.node()).values()
    assert sum(use.request_percent for use in used) == 400
    assert seconds < FORTY_PODS_SECONDS
