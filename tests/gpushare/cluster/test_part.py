"""Laws of a part: it has the part of every stored object that has one, and applying its changes yields it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import api_errors, informer
from tests.gpushare.cluster.test_object_store import Follower, collections, events
from tests.scripted_api import ScriptedApi

OURS = "ours"
PATH = "/things"


class PartFollower:
    """The objects that result from the changes of a part."""

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def follow(self, before: Any, after: Any) -> None:
        assert before is not None or after is not None
        if before is not None:
            self.objects.remove(before)
        if after is not None:
            self.objects.append(after)


def with_part(item: dict[str, Any]) -> dict[str, Any] | None:
    """Drop objects of version 1; add a part to those of version 3."""
    version = int(item["metadata"]["resourceVersion"])
    if version == 1:
        return None
    return {"metadata": item["metadata"], **({OURS: {"metadata": item["metadata"]}} if version == 3 else {})}


async def sync(whole: informer.Informer, api: ScriptedApi, step: Any) -> None:
    """Make the informer list all objects again, or receive one event."""
    if isinstance(step, list):
        api.objects[PATH] = step
        api.tell(PATH, api_errors.Gone("too old resource version"))
        await whole.step()
    else:
        api.tell(PATH, step)
    await whole.step()


async def check_its_changes(steps: list[Any]) -> None:
    api = ScriptedApi()
    whole = informer.Informer(api, PATH, transform=with_part)
    ours: informer.Part[Any] = informer.Part(whole, OURS)
    follower, everything = PartFollower(), Follower()
    ours.subscribe(follower.follow)
    whole.subscribe(everything.follow)
    await whole.step()
    for step in steps:
        await sync(whole, api, step)
        assert sorted(map(str, follower.objects)) == sorted(map(str, ours.objects.values()))
        assert dict(ours.objects) == {key: item[OURS] for key, item in whole.objects.items() if OURS in item}
        assert everything.objects == dict(whole.objects)
        assert all(item["metadata"]["resourceVersion"] != "1" for item in whole.objects.values())


@pytest.mark.slow
@given(steps=st.lists(st.one_of(collections, events), max_size=8))
def test_applying_the_changes_of_a_part_yields_its_objects(steps: list[Any]) -> None:
    asyncio.run(check_its_changes(steps))


async def test_a_late_subscriber_of_a_part_gets_all_its_objects() -> None:
    api = ScriptedApi()
    whole = informer.Informer(api, PATH, transform=with_part)
    ours: informer.Part[Any] = informer.Part(whole, OURS)
    late = PartFollower()
    metadata = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "3"}
    api.objects[PATH] = [{"metadata": metadata}]
    await whole.step()
    ours.subscribe(late.follow)
    assert late.objects == [{"metadata": metadata}]
