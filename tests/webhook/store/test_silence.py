"""A replica that once knew the cluster and is told nothing more: it is not ready for ever, and answers what it is asked."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from gpushare.cluster import api_client, api_errors
from webhook import metrics
from webhook.store.api_store import STALE_SECONDS, ApiStore


class Api(api_client.ApiClient):
    """An API server that answers until it does not."""

    def __init__(self) -> None:
        self.is_gone = False

    async def list(self, *_: object, **__: object) -> api_client.ObjectList[Any]:
        return api_client.ObjectList([], "1")

    @contextlib.asynccontextmanager
    async def watch(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        if self.is_gone:
            raise api_errors.Unavailable("GET /x: upstream is away", status=503, retry_after_seconds=3600.0)

        async def nothing() -> AsyncIterator[dict[str, Any]]:
            for event in ():
                yield event

        yield nothing()


async def test_who_is_told_nothing_for_long_says_so() -> None:
    now, api = [100.0], Api()
    store = ApiStore(api, metrics.Metrics(), clock=lambda: now[0])
    assert store.silence() is None, "that nothing is known yet is said by another check"
    informers = (
        store._gpunodes,
        store._nodes,
        store._occupancy._pods,
        *store._occupancy._storage._copies.values(),
        *store._allowances.informers,
    )
    for copy in informers:
        await copy.step()
    api.is_gone = True
    now[0] += STALE_SECONDS
    for copy in informers:
        await copy.step()
    assert store.silence() is None
    now[0] += 1
    assert store.silence() == "the API server has told nothing for 301 seconds: GET /x: upstream is away"
    assert store.missing() is None
    api.is_gone = False
    for copy in informers:
        await copy.step()
    assert store.silence() is None
