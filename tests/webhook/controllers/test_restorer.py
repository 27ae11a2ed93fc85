"""Who is told to be the first placer looks whether a placer has been there, before it opens a GPUNode without waiting."""

from __future__ import annotations

from typing import Any

from gpushare import codec
from gpushare.cluster import api_client, events
from gpushare.cluster.object_store import ChangeType, Delta, Key
from tests import builders
from webhook import metrics
from webhook.controllers.restore import Restorer
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.store.api_store import ApiStore

BEGAN = 1000.0
LIFETIME_SECONDS = 60.0


class Nobody(api_client.ApiClient):
    """An API server that is not asked anything here."""

    def __init__(self) -> None:
        pass


def closed(name: str) -> dict[str, Any]:
    document = codec.to_document(builders.node(name))
    return {**document, "spec": {}, "status": {}}  # its agent has told of no GPU, so it stays closed


async def opens_at(*others: dict[str, Any]) -> float:
    """When the new GPUNode may be opened by one who is told to be the first."""
    api = Nobody()
    store = ApiStore(api, metrics.Metrics(), clock=lambda: BEGAN)
    for document in (closed("new"), *others):
        name = document["metadata"]["name"]
        store._gpunodes._listed_at = BEGAN
        store._gpunode_changed(Delta(ChangeType.ADDED, Key("", name), None, document))
    restorer = Restorer(
        api,
        store,
        events.Recorder(api, controller="gpushare.io/test", instance="test"),
        metrics.Metrics(),
        placed_beside=lambda _: (),
        lifetime_seconds=LIFETIME_SECONDS,
        is_first=lambda: True,
    )
    await restorer.adopt(TouchedNodes().take([]), now=BEGAN)
    return restorer._open_at("new", BEGAN)


async def test_nothing_is_on_its_way_where_no_gpunode_was_ever_open() -> None:
    assert await opens_at() == BEGAN
    assert await opens_at(closed("other")) == BEGAN


async def test_an_open_gpunode_shows_that_somebody_placed_before() -> None:
    assert await opens_at(codec.to_document(builders.node("other"))) == BEGAN + LIFETIME_SECONDS
