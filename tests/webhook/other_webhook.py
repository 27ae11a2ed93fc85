"""Another webhook behind ours, in the process of the test."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from gpushare import contract
from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.webhook.conftest import Cluster
from webhook import review, server
from webhook.certificates import issuing
from webhook.certificates.rotation import RotationStep
from webhook.certificates.tls import Tls

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SIDECAR = {"op": "add", "path": "/spec/containers/-", "value": {"name": "injected", "image": "gpushare/sample:0.1"}}


async def inject(request: review.AdmissionRequest) -> review.ReviewResponse:
    """Add a container, so that ours is asked again."""
    names = [container["name"] for container in request["object"]["spec"]["containers"]]
    return review.ReviewResponse("injected", patch=() if "injected" in names else (SIDECAR,))


def certificates(directory: Path) -> tuple[str, ssl.SSLContext]:
    """The bundle of its authorities, and what it serves with."""
    held = issuing.take(RotationStep.START, None, ("127.0.0.1",), now=datetime.datetime.now(datetime.UTC))
    tls = Tls(directory)
    tls.load(held)
    return held.bundle, tls.context


@contextlib.asynccontextmanager
async def running(cluster: Cluster, admit: server.Admit, directory: Path) -> AsyncIterator[None]:
    """Called after ours: webhooks are called in the order of their configurations' names."""
    bundle, context = certificates(directory)
    async with (
        server.serve(admit, context, host="127.0.0.1", port=0) as port,
        registered(cluster, port, bundle),
    ):
        yield


@contextlib.asynccontextmanager
async def registered(cluster: Cluster, port: int, bundle: str) -> AsyncIterator[None]:
    """The API server calls `port` for each pod of the test's namespace; it must change a pod that is called nobody."""
    async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        authority = base64.b64encode(bundle.encode()).decode()
        webhook = {
            "name": "other.example.com",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": f"https://127.0.0.1:{port}{contract.WEBHOOK_PATH}", "caBundle": authority},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
            "sideEffects": "None",
            "timeoutSeconds": 30,  # a test may hold a pod up for long
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


async def is_called(cluster: Cluster, api: api_client.ApiClient) -> bool:
    """Whether the API server already knows: it learns of a new configuration by a watch."""
    plain = builders.pod("nobody", namespace=cluster.namespace)
    try:
        planned = await api.create(f"/api/v1/namespaces/{cluster.namespace}/pods", plain, query={"dryRun": "All"})
    except api_errors.ClusterError:
        return True
    return len(planned["spec"]["containers"]) > 1
