"""Another webhook behind ours: one that changes pods after us, and one that rejects them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gpushare import contract
from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.webhook import other_webhook
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from webhook import review

pytestmark = pytest.mark.apiserver

ATTEMPTS = 5


async def reject(_: review.AdmissionRequest) -> review.ReviewResponse:
    return review.deny(403, "not today")


async def create(cluster: Cluster) -> dict[str, object]:
    """Create a pod from this process's event loop, which also serves the other webhook."""
    async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        manifest = builders.pod(namespace=cluster.namespace, request="0.5")
        return await api.create(f"/api/v1/namespaces/{cluster.namespace}/pods", manifest)


async def test_a_pod_that_another_webhook_changes_keeps_its_one_share(cluster: Cluster, tmp_path: Path) -> None:
    started = cluster.start()
    async with other_webhook.running(cluster, other_webhook.inject, tmp_path / "other"):
        stored = json.loads(json.dumps(await create(cluster)))
    assert [container["name"] for container in stored["spec"]["containers"]] == ["main", "injected"]
    reviews = started.reviews()
    assert sum(reviews.values()) == 2
    assert reviews == {"placed": 1, "kept": 1} or "gated" in reviews  # on a slow disk the placer gives it its share
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == 1, cluster.explain)


async def test_the_share_of_a_pod_that_another_webhook_rejects_lapses(cluster: Cluster, tmp_path: Path) -> None:
    started = cluster.start("--reservation-seconds=20")  # a pause is no reason to see it lapse too soon
    async with other_webhook.running(cluster, reject, tmp_path / "other"):
        for _ in range(ATTEMPTS):
            with pytest.raises(api_errors.Forbidden, match="not today"):
                await create(cluster)
            if "placed" in started.reviews():
                break
            # On a slow disk it comes without a share; what is written late is given back.
            await asyncio.to_thread(until, lambda: cluster.node().allocations == (), cluster.explain)
        assert len(cluster.node().allocations) == 1, cluster.explain()
    until(lambda: cluster.node().allocations == (), cluster.explain, seconds=60)
    # Events about nodes are in one namespace, and those of other tests are there, too.
    whose = f"{cluster.namespace}/"
    until(lambda: any(whose in note for note in cluster.notes(contract.EVENT_EXPIRED, "default")), cluster.explain)
    until(lambda: started.metric('gpushare_placer_allocations_total{change="expired"}') == 1, cluster.explain)
