"""Other webhooks, called before and after ours, in the test's process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import datetime
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from gpushare import contract
from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.webhook.conftest import Cluster
from webhook import review, server
from webhook.certificates import rotation
from webhook.certificates.rotation import RotationStep
from webhook.certificates.tls import Tls
from webhook.pods import mutation

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SIDECAR = {"op": "add", "path": "/spec/containers/-", "value": {"name": "injected", "image": "gpushare/sample:0.1"}}


async def inject(request: review.AdmissionRequest) -> review.ReviewResponse:
    """Add a container, so that our webhook is reinvoked."""
    names = [container["name"] for container in request["object"]["spec"]["containers"]]
    return review.ReviewResponse("injected", patch=() if "injected" in names else (SIDECAR,))


def changing(change: Callable[[Any], None], name: str) -> server.Admit:
    """Return a webhook with this change; to the pod `nobody` it only adds a container with its name."""

    async def admit(request: review.AdmissionRequest) -> review.ReviewResponse:
        before: Any = request["object"]
        after = copy.deepcopy(before)
        if before["metadata"].get("name") != "nobody":
            change(after)
        elif all(container["name"] != name for container in after["spec"]["containers"]):
            after["spec"]["containers"].append({"name": name, "image": "gpushare/sample:0.1"})
        return review.ReviewResponse("changed", patch=mutation.patch(before, after))

    return admit


def certificates(directory: Path) -> tuple[str, ssl.SSLContext]:
    """Return the bundle of its authorities, and a TLS context to serve with."""
    held = rotation.apply_step(RotationStep.START, None, ("127.0.0.1",), now=datetime.datetime.now(datetime.UTC))
    tls = Tls(directory)
    tls.load(held)
    return held.bundle, tls.context


@contextlib.asynccontextmanager
async def running(
    cluster: Cluster, admit: server.Admit, directory: Path, *, name: str = "zz", sign: str = "injected"
) -> AsyncIterator[None]:
    """Run webhooks, called in the order of their configurations' names: zz after ours.

    sign: name of the container that a webhook adds to the pod `nobody`.
    """
    bundle, context = certificates(directory)
    async with (
        server.serve(admit, context, host="127.0.0.1", port=0) as port,
        registered(cluster, port, bundle, name=name, sign=sign),
    ):
        yield


@contextlib.asynccontextmanager
async def registered(
    cluster: Cluster, port: int, bundle: str, *, name: str = "zz", sign: str = "injected"
) -> AsyncIterator[None]:
    """Register a webhook for pods of the test's namespace; it must change the pod `nobody`."""
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
            "reinvocationPolicy": "IfNeeded",
        }
        name = f"{name}-{cluster.namespace}"
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
        await api.create(CONFIGURATIONS, configuration)
        try:
            async with asyncio.timeout(20):
                while not await is_called(cluster, api, sign):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            yield
        finally:
            await api.delete(f"{CONFIGURATIONS}/{name}")


async def is_called(cluster: Cluster, api: api_client.ApiClient, sign: str) -> bool:
    """Whether the API server calls the webhook, which it learns from a watch."""
    plain = builders.pod("nobody", namespace=cluster.namespace)
    try:
        planned = await api.create(f"/api/v1/namespaces/{cluster.namespace}/pods", plain, query={"dryRun": "All"})
    except api_errors.ClusterError:
        return True
    return sign in [container["name"] for container in planned["spec"]["containers"]]
