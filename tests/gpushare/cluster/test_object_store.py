"""Laws of the store: applying the reported changes yields the store, and the store equals the collection."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import object_store


def item(name: str, *, version: int, uid: str = "u", namespace: str = "default") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version), "managedFields": [1]}
    return {"metadata": metadata}


def replace(kept: object_store.Store, whole: list[Any]) -> Iterator[object_store.Delta]:
    """Replace the store's contents by a list; yield each change once the store contains it."""
    return (change for change in kept.replace(map(kept.keep, whole)) if change is not None)


objects = st.builds(item, st.sampled_from("abcd"), version=st.integers(1, 3), uid=st.sampled_from("uv"))
collections = st.lists(objects, unique_by=object_store.key_of)
events = st.builds(
    lambda kind, item: {"type": kind, "object": item}, st.sampled_from(list(object_store.ChangeType)), objects
)


class Follower:
    """A subscriber that applies changes and checks that each fits the previous ones."""

    def __init__(self) -> None:
        self.objects: dict[object_store.Key, dict[str, Any]] = {}

    def follow(self, change: object_store.Delta) -> None:
        assert self.objects.get(change.key) == change.old
        assert (change.old is None) == (change.type is object_store.ChangeType.ADDED)
        assert (change.new is None) == (change.type is object_store.ChangeType.DELETED)
        if change.old and change.new:
            assert change.old["metadata"]["uid"] == change.new["metadata"]["uid"]
            assert change.old["metadata"]["resourceVersion"] != change.new["metadata"]["resourceVersion"]
        if change.new is None:
            del self.objects[change.key]
        else:
            self.objects[change.key] = change.new


@pytest.mark.slow
@given(steps=st.lists(st.one_of(collections, events), max_size=8))
def test_applying_the_reported_changes_yields_the_store(steps: list[Any]) -> None:
    kept, follower = object_store.Store(), Follower()
    for step in steps:
        for change in replace(kept, step) if isinstance(step, list) else kept.apply(step):
            follower.follow(change)
            assert follower.objects == dict(kept)


@pytest.mark.slow
@given(before=collections, after=collections)
def test_a_list_replaces_the_contents_of_the_store(before: list[Any], after: list[Any]) -> None:
    kept = object_store.Store()
    list(replace(kept, before))
    list(replace(kept, after))
    expected = {object_store.key_of(pod): (pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]) for pod in after}
    assert {key: (pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]) for key, pod in kept.items()} == expected


@pytest.mark.slow
@given(collection=collections)
def test_the_same_list_again_reports_no_change(collection: list[Any]) -> None:
    kept = object_store.Store()
    list(replace(kept, collection))
    assert list(replace(kept, collection)) == []


def test_an_object_recreated_between_lists_is_deleted_and_added() -> None:
    kept = object_store.Store()
    list(replace(kept, [item("a", version=1, uid="old")]))
    changes = list(replace(kept, [item("a", version=2, uid="new")]))
    assert [change.type for change in changes] == [object_store.ChangeType.DELETED, object_store.ChangeType.ADDED]


def test_managed_fields_are_not_stored() -> None:
    kept = object_store.Store()
    (change,) = kept.apply({"type": "ADDED", "object": item("a", version=1)})
    assert change.new is not None
    assert "managedFields" not in change.new["metadata"]


def test_cluster_scoped_objects_have_an_empty_namespace() -> None:
    assert object_store.key_of({"metadata": {"name": "node-a"}}) == object_store.Key("", "node-a")


def test_a_watch_event_of_unknown_type_is_ignored() -> None:
    assert list(object_store.Store().apply({"type": "BOOKMARK", "object": item("a", version=1)})) == []
