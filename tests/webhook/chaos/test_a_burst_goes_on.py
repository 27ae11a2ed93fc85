"""Bursts in which components are killed, clients give up, and policies reject pods, under a watch of the whole
ledger.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from gpushare import contract, ledger
from gpushare.cluster import api_errors
from lab import cluster as lab_cluster
from lab import daemon_process
from tests import builders
from tests.webhook.chaos import crowd, witness
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

NODES = ("node-a", "node-b")
QUICK = "--reservation-seconds=5"


@pytest.fixture
def two_nodes(cluster: Cluster) -> Cluster:
    cluster.add_node(builders.node("node-b"))
    return cluster


async def test_each_replica_is_killed_once_while_pods_keep_coming(two_nodes: Cluster) -> None:
    """First the replica that is not the placer, in the next wave the placer; the third replica takes over."""
    placer, other = two_nodes.start(QUICK), two_nodes.start(QUICK)
    until(lambda: placer.metric("gpushare_placer_leads") == 1, placer.explain)
    async with witness.watching(two_nodes.administrator.kubeconfig):
        for number, victim in enumerate((other, placer)):
            answered = sum(victim.reviews().values())
            manifests = crowd.pods(24, prefix=f"wave-{number}", request="0.25")
            wave = asyncio.create_task(crowd.insist(two_nodes, manifests[:16], at_once=8))
            while not wave.done() and sum(victim.reviews().values()) < answered + 3:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
            if victim is placer:
                two_nodes.kill(victim)
            else:
                victim.kill()
            await asyncio.gather(wave, crowd.insist(two_nodes, manifests[16:], at_once=8))
            await asyncio.to_thread(two_nodes.start, QUICK)
        placed = crowd.placed(two_nodes)
        for pod in placed[:8]:  # who waits gets their room from the next placer
            await asyncio.to_thread(two_nodes.delete, pod["metadata"]["name"])
        await asyncio.to_thread(until, lambda: len(crowd.placed(two_nodes)) == 32, two_nodes.explain, seconds=40)
        await asyncio.to_thread(lambda: crowd.settled(two_nodes, *NODES))
    assert len(two_nodes.pods()) == 40


async def test_an_api_server_killed_in_a_burst_loses_nothing(two_nodes: Cluster) -> None:
    lab = two_nodes.administrator.lab
    if lab is None:
        pytest.skip("only the lab's API server is ours to kill")
    two_nodes.start(QUICK)
    two_nodes.start(QUICK)
    async with witness.watching(two_nodes.administrator.kubeconfig):
        manifests = crowd.pods(40, request="0.25")
        burst = asyncio.create_task(crowd.insist(two_nodes, manifests[:30], at_once=4))
        await asyncio.to_thread(until, lambda: len(two_nodes.pods()) >= 5, two_nodes.explain)
        pid = daemon_process.pid_of("kube-apiserver", lab.processes)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        more = asyncio.create_task(crowd.insist(two_nodes, manifests[30:], at_once=4))
        until(lambda: daemon_process.pid_of("kube-apiserver", lab.processes) is None)
        await asyncio.to_thread(lab_cluster.up, lab.directory, node_count=len(lab.nodes))
        await asyncio.gather(burst, more)
        await asyncio.to_thread(until, lambda: len(crowd.placed(two_nodes)) == 32, two_nodes.explain, seconds=60)
        await asyncio.to_thread(lambda: crowd.settled(two_nodes, *NODES, seconds=60))
    assert len(two_nodes.pods()) == 40


async def test_share_of_a_pod_rejected_by_a_quota_is_released(cluster: Cluster) -> None:
    started = cluster.start("--reservation-seconds=3")
    hard = {f"requests.{contract.RESOURCE_PERCENT}": "100"}
    cluster.add_quota("few", hard)
    # Admission hears of that a moment later: this is two shares more than there may ever be.
    more = builders.pod("more", request="1", gpus="2")
    await asyncio.to_thread(until, lambda: cluster.refuses(more, "exceeded quota"), started.explain)
    started.count_from_here()
    async with witness.watching(cluster.administrator.kubeconfig):
        made = await crowd.create(cluster, crowd.pods(6, request="0.5"), at_once=2)
        refused = [outcome for outcome in made if isinstance(outcome, BaseException)]
        assert len(refused) == 4
        assert all(isinstance(error, api_errors.Forbidden) and "exceeded quota" in str(error) for error in refused)
        # As many as the quota leaves, and pods that arrived before the replicas knew that it was used up.
        assert 2 <= started.reviews()["placed"] <= 6
        crowd.settled(cluster, count=2)
    assert len(cluster.node().allocations) == 2


async def test_dry_runs_in_a_burst_reserve_nothing(cluster: Cluster) -> None:
    first, second = cluster.start(), cluster.start()
    async with witness.watching(cluster.administrator.kubeconfig) as seen:
        planned, made = await asyncio.gather(
            crowd.create(cluster, crowd.pods(20, prefix="plan", request="0.25"), dry_run=True),
            crowd.create(cluster, crowd.pods(10, request="0.25")),
        )
        assert [outcome for outcome in (*planned, *made) if isinstance(outcome, BaseException)] == []
        crowd.settled(cluster, count=10)
    assert seen.versions >= 2
    assert sum(replica.reviews().get("planned", 0) for replica in (first, second)) == 20


async def test_retrying_clients_make_one_pod_and_one_share_each(cluster: Cluster) -> None:
    cluster.start(QUICK)
    cluster.start(QUICK)
    async with witness.watching(cluster.administrator.kubeconfig):
        await crowd.insist(cluster, crowd.pods(20, request="0.1"), give_up_seconds=0.03)
        crowd.settled(cluster, count=20)
    assert len(cluster.pods()) == 20


async def test_pods_with_generated_names_each_get_a_share(cluster: Cluster) -> None:
    cluster.start()
    cluster.start()
    manifests = crowd.pods(20, request="0.1")
    for manifest in manifests:
        del manifest["metadata"]["name"]
        manifest["metadata"]["generateName"] = "worker-"
    async with witness.watching(cluster.administrator.kubeconfig):
        await crowd.create(cluster, manifests)
        crowd.settled(cluster, count=20)
    held = cluster.node().allocations
    assert {entry.pod.name for entry in held} == {pod["metadata"]["name"] for pod in cluster.pods()}


async def test_pods_deleted_while_they_wait_or_are_placed_keep_nothing(cluster: Cluster) -> None:
    cluster.start(QUICK)
    cluster.start(QUICK)
    async with witness.watching(cluster.administrator.kubeconfig):
        await crowd.create(cluster, crowd.pods(4, prefix="holder", request="1"))
        await crowd.create(cluster, crowd.pods(16, request="0.5"))
        gone = [f"holder-{number}" for number in range(4)] + [f"pod-{number}" for number in range(0, 16, 2)]
        for some in (gone[:6], gone[6:]):  # half of the waiting ones just as the others are placed
            for name in some:
                cluster.delete(name)
        until(lambda: len(crowd.placed(cluster)) == 8, cluster.explain)
        crowd.settled(cluster)
    assert sum(used.request_percent for used in ledger.use(cluster.node()).values()) == 400


async def test_a_node_that_disappears_in_a_burst_takes_nothing_with_it(two_nodes: Cluster) -> None:
    two_nodes.start(QUICK)
    two_nodes.start(QUICK)
    async with witness.watching(two_nodes.administrator.kubeconfig):
        burst = asyncio.create_task(crowd.insist(two_nodes, crowd.pods(40, request="0.25"), at_once=8))
        await asyncio.to_thread(until, lambda: len(two_nodes.node("node-b").allocations) >= 2, two_nodes.explain)
        for path in ("/api/v1/nodes", contract.GPUNODE_PATH):
            await asyncio.to_thread(two_nodes.administrator.delete, f"{path}/node-b")
        await burst
        lost: set[str] = set()

        def has_all_on_the_other() -> bool:
            """As pod GC does, for as long as there are some: their gates may be opened a moment later."""
            placed = crowd.placed(two_nodes)
            on_it = [pod for pod in placed if pod["metadata"]["annotations"][contract.NODE] == "node-b"]
            for pod in on_it:
                lost.add(pod["metadata"]["name"])
                two_nodes.delete(pod["metadata"]["name"])
            return not on_it and len(placed) == 16

        await asyncio.to_thread(until, has_all_on_the_other, two_nodes.explain, seconds=40)
        crowd.settled(two_nodes, "node-a")
    assert len(two_nodes.pods()) == 40 - len(lost)
