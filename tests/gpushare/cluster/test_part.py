"""Laws of a part: it holds what stands in the store where that holds anything, and its changes add up to it."""

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
    """What the changes of a part add up to."""

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def follow(self, before: Any, after: Any) -> None:
        assert before is not None or after is not None
        if before is not None:
            self.objects.remove(before)
        if after is not None:
            self.objects.append(after)


def kept(item: dict[str, Any]) -> dict[str, Any] | None:
    """Nothing of the first version of an object, a part of the third."""
    version = int(item["metadata"]["resourceVersion"])
    if version == 1:
        return None
    return {"metadata": item["metadata"], **({OURS: {"metadata": item["metadata"]}} if version == 3 else {})}


async def learn(whole: informer.Informer, api: ScriptedApi, step: Any) -> None:
    """Have it list all objects again, or hear of one event."""
    if isinstance(step, list):
        api.objects[PATH] = step
        api.tell(PATH, api_errors.Gone("too old resource version"))
        await whole.step()
    else:
        api.tell(PATH, step)
    await whole.step()


async def check_its_changes(steps: list[Any]) -> None:
    api = ScriptedApi()
    whole = informer.Informer(api, PATH, transform=kept)
    ours: informer.Part[Any] = informer.Part(whole, OURS)
    follower, everything = PartFollower(), Follower()
    ours.subscribe(follower.follow)
    whole.subscribe(everything.follow)
    await whole.step()
    for step in steps:
        await learn(whole, api, step)
        assert sorted(map(str, follower.objects)) == sorted(map(str, ours.objects.values()))
        assert dict(ours.objects) == {key: item[OURS] for key, item in whole.objects.items() if OURS in item}
        assert everything.objects == dict(whole.objects)
        assert all(item["metadata"]["resourceVersion"] != "1" for item in whole.objects.values())


@pytest.mark.slow
@given(steps=st.lists(st.one_of(collections, events), max_size=8))
def test_its_changes_added_up_are_what_the_store_holds_of_it(steps: list[Any]) -> None:
    asyncio.run(check_its_changes(steps))


async def test_who_comes_late_is_told_of_all_that_is_there() -> None:
    api = ScriptedApi()
    whole = informer.Informer(api, PATH, transform=kept)
    ours: informer.Part[Any] = informer.Part(whole, OURS)
    late = PartFollower()
    metadata = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "3"}
    api.objects[PATH] = [{"metadata": metadata}]
    await whole.step()
    ours.subscribe(late.follow)
    assert late.objects == [{"metadata": metadata}]
