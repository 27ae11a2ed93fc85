"""How the API server treats a review in flight on a connection that is being closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.webhook import other_webhook
from tests.webhook.conftest import Cluster
from webhook import connections, review

pytestmark = pytest.mark.apiserver
CROSSES = "crosses"  # the name of the pod whose review does, once


class Crossing:
    """A server that closes a connection just as the review of one pod arrives, whenever it may."""

    def __init__(self, last_words: bytes) -> None:
        self.reviews: list[tuple[int, str]] = []
        self._last_words = last_words
        self._has_crossed = False
        self._connections = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self._connections = self._connections, self._connections + 1
        self._open.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._answer(number, reader, writer):
                pass
        writer.close()

    async def close(self) -> None:
        """Close the API server's pooled connections."""
        for writer in self._open:
            writer.close()
            with contextlib.suppress(OSError):
                await asyncio.wait_for(writer.wait_closed(), 10)

    async def _answer(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line.split()[1] for line in head.splitlines() if line.startswith("content-length"))
        asked = review.read(await reader.readexactly(int(length)))
        name = asked["object"]["metadata"]["name"]
        self.reviews.append((number, name))
        if name == CROSSES and not self._has_crossed:
            self._has_crossed = True
            writer.write(self._last_words)
            await writer.drain()
            return False
        body = json.dumps(review.respond(asked, await other_webhook.inject(asked))).encode()
        kind = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(kind.encode() + body)
        await writer.drain()
        return True


async def create_beside(cluster: Cluster, crossing: Crossing, directory: Path) -> None:
    bundle, context = other_webhook.certificates(directory)
    listening = await asyncio.start_server(crossing.serve, "127.0.0.1", 0, ssl=context)
    async with (
        listening,
        other_webhook.registered(cluster, listening.sockets[0].getsockname()[1], bundle),
        api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api,
    ):
        crossing.reviews.clear()
        try:
            await api.create(f"{cluster.path}/pods", builders.pod(CROSSES, namespace=cluster.namespace))
        finally:
            await crossing.close()


async def test_review_is_retried_if_the_connection_ends_with_that_response(cluster: Cluster, tmp_path: Path) -> None:
    crossing = Crossing(connections.SEND_AGAIN)
    await create_beside(cluster, crossing, tmp_path)
    (first, _), (second, _), *_ = crossing.reviews  # and again, if a webhook behind changes the pod
    assert first < second  # on another connection


async def test_pod_is_rejected_if_the_connection_ends_without_a_response(cluster: Cluster, tmp_path: Path) -> None:
    crossing = Crossing(b"")
    with pytest.raises(api_errors.ClusterError, match="EOF"):
        await create_beside(cluster, crossing, tmp_path)
    assert len(crossing.reviews) == 1
