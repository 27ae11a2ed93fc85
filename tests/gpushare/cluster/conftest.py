"""A client of a real API server, and a namespace for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from gpushare.cluster import api_client, api_errors
from lab import access
from tests.gpushare.cluster import waiting

# A custom kind with a status, whose watch cache is younger than the API server.
WIDGETS: Final = "widgets.test.gpushare.io"
WIDGET_DEFINITION: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": WIDGETS},
    "spec": {
        "group": "test.gpushare.io",
        "scope": "Cluster",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
async def api(api_server: access.Access) -> AsyncIterator[api_client.ApiClient]:
    async with api_client.connect(str(api_server.kubeconfig), component="test") as api:
        yield api


@pytest.fixture(scope="module")
def namespace(api_server: access.Access) -> Iterator[str]:
    with api_server.namespace() as name:
        yield name


@pytest.fixture
def config_maps(namespace: str) -> str:
    """The path of the ConfigMaps of a namespace that only this test uses."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
async def widgets(api_server: access.Access, api: api_client.ApiClient) -> AsyncIterator[str]:
    """The path of the Widgets: a cluster-scoped kind with a status that exists for one test only."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    created = await api.create(definitions, WIDGET_DEFINITION)
    path = "/apis/test.gpushare.io/v1/widgets"
    await waiting.until(lambda: _is_served(api, path))
    yield path
    version = created["metadata"]["resourceVersion"]
    async with asyncio.timeout(30):
        await api.delete(f"{definitions}/{WIDGETS}")
        # Deletion waits for finalizers. The next test must not find a half-deleted kind.
        query = {"fieldSelector": f"metadata.name={WIDGETS}", "resourceVersion": version}
        async with api.watch(definitions, query) as events:
            async for event in events:
                if event["type"] == "DELETED":
                    return


async def _is_served(api: api_client.ApiClient, path: str) -> bool:
    """Whether the API server watches a new kind; until then it answers 404 and 429."""
    try:
        async with api.watch(path, timeout_seconds=1):
            return True
    except (api_errors.NotFound, api_errors.Unavailable):
        return False
