"""The ranges that a replica knows: from its copy of the Namespaces, and from the API server what the copy lacks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.scripted_api import ScriptedApi
from webhook.store import api_store, ledger_store
from webhook.store.api_store import NAMESPACES_PATH

MAX = "max.gpushare.io/request"
VERSIONS = itertools.count(10)


def namespace(name: str, *, most: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "resourceVersion": str(next(VERSIONS)),
            "annotations": {MAX: most},
        }
    }


async def test_a_namespace_that_the_watch_has_not_shown_is_read_from_the_api_server() -> None:
    api = ScriptedApi()
    known = api_store.ShareRanges(api)
    await known.informer.step()
    api.objects[NAMESPACES_PATH] = [namespace("other", most="1"), namespace("new", most="0.5")]
    assert (await known.of("new")).values == {MAX: 50}
    assert (await known.of("none")).values == {}
    api.is_away = True
    with pytest.raises(ledger_store.UnreachableError, match="upstream is away"):
        await known.of("new")


async def test_bounds_follow_the_annotations_of_the_namespace() -> None:
    api = ScriptedApi()
    known = api_store.ShareRanges(api)
    api.objects[NAMESPACES_PATH] = [namespace("team", most="0.5")]
    api.tell(NAMESPACES_PATH, {"type": "MODIFIED", "object": namespace("team", most="0.25")})
    await known.informer.step()
    api.objects[NAMESPACES_PATH] = []
    assert (await known.of("team")).values == {MAX: 25}
    api.tell(NAMESPACES_PATH, {"type": "MODIFIED", "object": namespace("team", most="lots")})
    await known.informer.step()
    assert (await known.of("team")).problem.startswith(f'{MAX} "lots" is not a part of a GPU')
    api.tell(NAMESPACES_PATH, {"type": "DELETED", "object": namespace("team", most="lots")})
    await known.informer.step()
    assert (await known.of("team")).values == {}
