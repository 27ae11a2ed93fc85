"""Users: many pods at once, created by clients that give up, retry and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gpushare import contract, ledger
from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

RETRY_SECONDS = 0.2
PATIENCE_SECONDS = 180.0  # an API server that is restarted on a busy machine


def pods(count: int, *, prefix: str = "pod", **asked: Any) -> list[dict[str, Any]]:
    made = [builders.pod(f"{prefix}-{number}", **asked) for number in range(count)]
    for manifest in made:
        del manifest["metadata"]["namespace"]
    return made


async def create(
    cluster: Cluster,
    manifests: Sequence[dict[str, Any]],
    *,
    at_once: int = 20,
    dry_run: bool = False,
    answered: Callable[[], None] = lambda: None,
) -> list[dict[str, Any] | BaseException]:
    """Create all pods; return the results in order. `answered` is called after each answer."""
    slots = asyncio.Semaphore(at_once)
    async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        path = f"/api/v1/namespaces/{cluster.namespace}/pods"

        async def one(manifest: dict[str, Any]) -> dict[str, Any]:
            async with slots:
                try:
                    return await api.create(path, manifest, query={"dryRun": "All"} if dry_run else None)
                finally:
                    answered()

        return await asyncio.gather(*map(one, manifests), return_exceptions=True)


async def insist(
    cluster: Cluster, manifests: Sequence[dict[str, Any]], *, give_up_seconds: float = 30.0, at_once: int = 20
) -> None:
    """Create all pods, and retry each until it exists, as a controller does: a lost answer does not lose the pod."""
    slots = asyncio.Semaphore(at_once)
    async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        path = f"/api/v1/namespaces/{cluster.namespace}/pods"

        async def one(manifest: dict[str, Any]) -> None:
            seconds = give_up_seconds
            while True:
                try:
                    async with slots, asyncio.timeout(seconds):
                        await api.create(path, manifest)
                except api_errors.AlreadyExists:
                    return
                except (api_errors.ClusterError, TimeoutError):
                    seconds = 30.0  # impatient only once
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    return

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*map(one, manifests))


def settled(cluster: Cluster, *names: str, count: int | None = None, seconds: float = 40.0) -> None:
    """Wait until the ledger of these nodes is exactly what the living pods hold, and confirmed.

    count: pods that must be placed by then. On a busy machine some are gated first, and the placer places them.
    """

    def is_so() -> bool:
        nodes = [cluster.node(name) for name in names or ("node-a",)]
        assert [sentence for node in nodes for sentence in ledger.violations(node)] == []
        held = {(entry.id, entry.pod.uid, node.name) for node in nodes for entry in node.allocations}
        wanted = {
            (notes[contract.ALLOCATION], pod["metadata"]["uid"], notes[contract.NODE])
            for pod in cluster.pods()
            if contract.ALLOCATION in (notes := pod["metadata"]["annotations"])
        }
        return held == wanted and count in {None, len(wanted)}

    until(is_so, cluster.explain, seconds=seconds)


def placed(cluster: Cluster) -> list[dict[str, Any]]:
    return [pod for pod in cluster.pods() if contract.ALLOCATION in pod["metadata"]["annotations"]]
