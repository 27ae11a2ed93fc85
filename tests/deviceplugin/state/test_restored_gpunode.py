"""After a restore of etcd, the agent accepts the older GPUNode in spite of its version."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from deviceplugin.state.gpunode_copy import GpuNodeCopy
from gpushare import codec
from gpushare.cluster import api_client, api_errors
from tests import builders


def document(*held: str, version: int) -> dict[str, Any]:
    node = builders.node(gpus=1)
    made = codec.to_document(type(node)(node.name, node.gpus, tuple(builders.allocation(name) for name in held)))
    made["metadata"].update(resourceVersion=str(version), uid="u")
    return made


class Api(api_client.ApiClient):
    """An API server with one GPUNode, whose resourceVersion is also the server's.

    has_forgotten: whether the next watch fails because its version has expired.
    """

    def __init__(self, stored: dict[str, Any]) -> None:
        self.stored = stored
        self.has_forgotten = False

    @property
    def version(self) -> int:
        return int(self.stored["metadata"]["resourceVersion"])

    async def list(
        self, path: str, query: api_client.Query | None = None, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        assert path.endswith("/gpunodes")
        named = str((query or {}).get("resourceVersion") or "0")
        if int(named) > self.version:
            raise api_errors.Unavailable("Too large resource version", status=504)
        return api_client.ObjectList([keep({**self.stored})], str(self.version))

    @contextlib.asynccontextmanager
    async def watch(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async def nothing() -> AsyncIterator[dict[str, Any]]:
            for event in ():
                yield event
            if self.has_forgotten:
                self.has_forgotten = False
                raise api_errors.Gone("too old resource version")

        yield nothing()


def allocations(gpunode: GpuNodeCopy) -> list[str]:
    node = gpunode.now()
    assert node is not None
    return [entry.id for entry in node.allocations]


async def test_an_older_gpunode_counts_after_a_restore() -> None:
    api = Api(document("a", "b", version=100))
    gpunode = GpuNodeCopy(api, node_name="node-a", wake=asyncio.Event())
    await gpunode.informer.step()
    assert allocations(gpunode) == ["a", "b"]
    api.stored = document("a", version=90)
    for _ in range(2):  # asks for version 100, which does not exist, and lists
        await gpunode.informer.step()
    assert allocations(gpunode) == ["a"]
    api.stored = document("a", "c", version=91)
    api.has_forgotten = True
    for _ in range(2):  # gets an expired version, and lists
        await gpunode.informer.step()
    assert allocations(gpunode) == ["a", "c"]
