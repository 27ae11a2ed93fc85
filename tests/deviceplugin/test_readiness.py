"""An agent that loses its credentials stops being ready."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from deviceplugin import node_parts
from gpushare.cluster import api_client, api_errors, informer


class Api(api_client.ApiClient):
    """An API server that answers until the credentials become invalid."""

    def __init__(self) -> None:
        self.refuses = False

    async def list(self, *_: object, **__: object) -> api_client.ObjectList[Any]:
        self._check()
        return api_client.ObjectList([], "1")

    @contextlib.asynccontextmanager
    async def watch(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        self._check()

        async def nothing() -> AsyncIterator[dict[str, Any]]:
            for event in ():
                yield event

        yield nothing()

    def _check(self) -> None:
        if self.refuses:
            raise api_errors.Unauthorized("the API server answered 401: Unauthorized", status=401)


async def test_an_agent_without_valid_credentials_stops_being_ready() -> None:
    now = [100.0]
    api = Api()
    pods = informer.Informer(api, "/api/v1/pods", clock=lambda: now[0])
    assert (
        informer.stale_reason([pods], longest_seconds=node_parts.STALE_SECONDS) is None
    )  # another check reports that nothing is known yet
    await pods.step()
    assert informer.stale_reason([pods], longest_seconds=node_parts.STALE_SECONDS) is None
    api.refuses = True
    now[0] += 59
    await pods.step()
    assert informer.stale_reason([pods], longest_seconds=node_parts.STALE_SECONDS) is None
    now[0] += 2
    assert informer.stale_reason([pods], longest_seconds=node_parts.STALE_SECONDS) == (
        "no update from the API server for 61 seconds: the API server answered 401: Unauthorized"
    )
    api.refuses = False
    await pods.step()
    assert informer.stale_reason([pods], longest_seconds=node_parts.STALE_SECONDS) is None
