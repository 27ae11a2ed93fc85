"""The calls of the API client by which nodes are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpushare.cluster import api_client


class DemandClient(Protocol):
    """The calls by which the placer asks for nodes. Each raises ClusterError if it fails."""

    async def get(self, path: str) -> dict[str, Any]:
        """Return the object at `path`."""

    async def list(
        self, path: str, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        """Return the objects of the collection at `path`, each reduced by `keep`."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at `path`, and return it as stored."""

    async def delete(self, path: str, *, uid: str | None = None) -> dict[str, Any]:
        """Delete the object at `path`; with `uid`, only that one and no later one of its name."""
