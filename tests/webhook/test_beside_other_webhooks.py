"""Another webhook after ours: one that changes pods, and one that rejects them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.webhook import admission_chain, other_webhook
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


async def test_pod_changed_by_another_webhook_keeps_its_share(cluster: Cluster, tmp_path: Path) -> None:
    started = cluster.start()
    async with other_webhook.running(cluster, other_webhook.inject, tmp_path / "other"):
        stored = json.loads(json.dumps(await create(cluster)))
    assert [container["name"] for container in stored["spec"]["containers"]] == ["main", "injected"]
    reviews = started.reviews()
    assert sum(reviews.values()) == 2
    assert reviews == {"placed": 1, "kept": 1} or "gated" in reviews  # on a slow disk the placer gives it its share
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == 1, cluster.explain)


async def test_share_of_a_pod_rejected_by_another_webhook_expires(cluster: Cluster, tmp_path: Path) -> None:
    started = cluster.start("--reservation-seconds=8")  # a pause is no reason to see it lapse too soon
    async with other_webhook.running(cluster, reject, tmp_path / "other"):
        for _ in range(ATTEMPTS):
            with pytest.raises(api_errors.Forbidden, match="not today"):
                await create(cluster)
            if "placed" in started.reviews():
                break
            # On a slow disk the pod gets no share at first; a share that is written late is released.
            await asyncio.to_thread(until, lambda: cluster.node().allocations == (), cluster.explain)
        assert len(cluster.node().allocations) == 1, cluster.explain()
    until(lambda: cluster.node().allocations == (), cluster.explain, seconds=60)
    # Events about nodes are in one namespace, and those of other tests are there, too.
    whose = f"{cluster.namespace}/"
    until(lambda: any(whose in note for note in cluster.notes(contract.EVENT_EXPIRED, "default")), cluster.explain)
    until(lambda: started.metric('gpushare_placer_allocations_total{change="expired"}') == 1, cluster.explain)


KUEUE = "kueue.x-k8s.io/admission"


@contextlib.asynccontextmanager
async def others(cluster: Cluster, directory: Path, **changes: admission_chain.Webhook) -> AsyncIterator[None]:
    """Run webhooks that change pods; aa… is called before ours, zz… after it."""
    async with contextlib.AsyncExitStack() as stack:
        for name, change in changes.items():
            admit = other_webhook.changing(change, name)
            await stack.enter_async_context(
                other_webhook.running(cluster, admit, directory / name, name=name, sign=name)
            )
        yield


async def test_several_webhooks_before_and_behind_change_a_pod(cluster: Cluster, tmp_path: Path) -> None:
    """A label before us; sidecars at both ends, a selector and a variable after us."""
    started = cluster.start()
    async with others(
        cluster,
        tmp_path,
        aalabel=admission_chain.annotate("example.com/team", "ml"),
        zzkuma=admission_chain.sidecar(0, "kuma-sidecar"),
        zzlogger=admission_chain.sidecar(-1, "logger"),
        zzselector=admission_chain.selector(contract.HOSTNAME_LABEL + ".example.com", "none"),
    ):
        stored: Any = await create(cluster)
    names = [container["name"] for container in stored["spec"]["containers"]]
    assert names == ["kuma-sidecar", "main", "logger"]
    sharers = [container["name"] for container in stored["spec"]["containers"] if "limits" in container["resources"]]
    assert sharers == ["main"]
    # The node lacks that label, so the share was released.
    assert [gate["name"] for gate in stored["spec"]["schedulingGates"]] == [contract.SCHEDULING_GATE]
    assert "lacks the label" in stored["metadata"]["annotations"][contract.REASON]
    assert contract.HOSTNAME_LABEL not in stored["spec"]["nodeSelector"]
    assert sum(started.reviews().values()) == 2
    assert cluster.node().allocations == ()


async def test_a_sidecar_in_front_leaves_the_share_where_it_is(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start()
    async with others(cluster, tmp_path, zzkuma=admission_chain.sidecar(0, "kuma-sidecar")):
        stored: Any = await create(cluster)
    assert [container["name"] for container in stored["spec"]["containers"]] == ["kuma-sidecar", "main"]
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == 1, cluster.explain)
    assert cluster.node().allocations[0].shares[0].containers == ("main",)


async def test_pod_gated_by_kueue_after_us_has_no_share(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start()
    async with others(cluster, tmp_path, zzkueue=admission_chain.gate(KUEUE)):
        stored: Any = await create(cluster)
    gates = [gate["name"] for gate in stored["spec"]["schedulingGates"]]
    assert sorted(gates) == [contract.SCHEDULING_GATE, KUEUE]
    assert KUEUE in stored["metadata"]["annotations"][contract.REASON]
    assert cluster.node().allocations == ()
    opened = {"spec": {"schedulingGates": [{"name": contract.SCHEDULING_GATE}]}}
    await asyncio.to_thread(cluster.administrator.patch, f"{cluster.path}/pods/trainer", opened)
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == 1, cluster.explain)
