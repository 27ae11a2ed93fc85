"""Laws of a part: it holds what stands in the store where that holds anything, and its changes add up to it."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import api_client, informer, part
from tests.gpushare.cluster.test_object_store import Follower, collections, events

OURS = "ours"


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


@given(steps=st.lists(st.one_of(collections, events), max_size=8))
def test_its_changes_added_up_are_what_the_store_holds_of_it(steps: list[Any]) -> None:
    whole = informer.Informer(mock.create_autospec(api_client.ApiClient), "/things", transform=kept)
    ours: part.Part[Any] = part.Part(whole, OURS)
    follower, everything = PartFollower(), Follower()
    ours.subscribe(follower.follow)
    whole.subscribe(everything.follow)
    for step in steps:
        told = (
            whole._store.replace(map(whole._store.keep, step)) if isinstance(step, list) else whole._store.apply(step)
        )
        for change in told:
            if change is not None:
                whole._tell(change)
        assert sorted(map(str, follower.objects)) == sorted(map(str, ours.objects.values()))
        assert dict(ours.objects) == {key: item[OURS] for key, item in whole.objects.items() if OURS in item}
        assert everything.objects == dict(whole.objects)
        assert all(item["metadata"]["resourceVersion"] != "1" for item in whole.objects.values())


def test_who_comes_late_is_told_of_all_that_is_there() -> None:
    whole = informer.Informer(mock.create_autospec(api_client.ApiClient), "/things", transform=kept)
    ours: part.Part[Any] = part.Part(whole, OURS)
    late = PartFollower()
    metadata = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "3"}
    for change in whole._store.apply({"type": "ADDED", "object": {"metadata": metadata}}):
        whole._tell(change)
    ours.subscribe(late.follow)
    assert late.objects == [{"metadata": metadata}]
