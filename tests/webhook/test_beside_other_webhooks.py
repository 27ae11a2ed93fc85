"""Another webhook behind ours: one that changes pods after us, and one that rejects them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare import contract
from gpushare.cluster import client, errors
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from webhook import review, server
from webhook.certificates import issuing
from webhook.certificates.rotation import Step
from webhook.certificates.tls import Tls

pytestmark = pytest.mark.apiserver

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SIDECAR = {"op": "add", "path": "/spec/containers/-", "value": {"name": "injected", "image": "gpushare/sample:0.1"}}


async def inject(request: review.AdmissionRequest) -> review.Answer:
    names = [container["name"] for container in request["object"]["spec"]["containers"]]
    return review.Answer("injected", patch=() if "injected" in names else (SIDECAR,))


async def reject(_: review.AdmissionRequest) -> review.Answer:
    return review.deny(403, "not today")


@contextlib.asynccontextmanager
async def other_webhook(cluster: Cluster, admit: server.Admit, directory: Path) -> AsyncIterator[None]:
    """Called after ours: webhooks are called in the order of their configurations' names."""
    held = issuing.take(Step.START, None, ("127.0.0.1",), now=datetime.datetime.now(datetime.UTC))
    tls = Tls(directory)
    tls.load(held)
    async with (
        server.serve(admit, tls.context, host="127.0.0.1", port=0) as port,
        client.connect(str(cluster.administrator.kubeconfig), component="test") as api,
    ):
        authority = base64.b64encode(held.bundle.encode()).decode()
        webhook = {
            "name": "other.example.com",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": f"https://127.0.0.1:{port}{contract.WEBHOOK_PATH}", "caBundle": authority},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
            "sideEffects": "None",
        }
        name = f"zz-{cluster.namespace}"
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
        await api.create(CONFIGURATIONS, configuration)
        try:
            async with asyncio.timeout(20):
                while not await is_called(cluster, api):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            yield
        finally:
            await api.delete(f"{CONFIGURATIONS}/{name}")


async def is_called(cluster: Cluster, api: client.Client) -> bool:
    """Whether the API server already knows: it learns of a new configuration by a watch."""
    plain = builders.pod("nobody", namespace=cluster.namespace)
    try:
        planned = await api.create(f"/api/v1/namespaces/{cluster.namespace}/pods", plain, dry_run=True)
    except errors.ClusterError:
        return True
    return len(planned["spec"]["containers"]) > 1


async def create(cluster: Cluster) -> dict[str, object]:
    """Create a pod from this process's event loop, which also serves the other webhook."""
    async with client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        manifest = builders.pod(namespace=cluster.namespace, request="0.5")
        return await api.create(f"/api/v1/namespaces/{cluster.namespace}/pods", manifest)


async def test_a_pod_that_another_webhook_changes_keeps_its_one_share(cluster: Cluster, tmp_path: Path) -> None:
    started = cluster.start()
    async with other_webhook(cluster, inject, tmp_path / "other"):
        stored = json.loads(json.dumps(await create(cluster)))
    assert [container["name"] for container in stored["spec"]["containers"]] == ["main", "injected"]
    assert started.reviews() == {"placed": 1, "kept": 1}
    until(cluster.is_settled, cluster.explain)
    assert len(cluster.node().allocations) == 1


async def test_the_share_of_a_pod_that_another_webhook_rejects_lapses(cluster: Cluster, tmp_path: Path) -> None:
    started = cluster.start("--reservation-seconds=2")
    async with other_webhook(cluster, reject, tmp_path / "other"):
        with pytest.raises(errors.Forbidden, match="not today"):
            await create(cluster)
    assert len(cluster.node().allocations) == 1
    until(lambda: cluster.node().allocations == (), cluster.explain)

    def told() -> bool:
        listed = json.loads(cluster.kubectl("get", "events", "--namespace=default", "-o", "json"))["items"]
        return contract.EVENT_EXPIRED in [event["reason"] for event in listed]

    until(told, cluster.explain)
    assert started.metric('gpushare_placer_allocations_total{change="expired"}') == 1
