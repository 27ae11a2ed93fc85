"""A stored pod keeps what the placer reads, and nothing else; null counts as absent."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract, pod
from gpushare import request as requests
from gpushare.nodefilters import PodInfo
from tests import builders
from tests.webhook.leftovers import left_bytes
from webhook.pods.stored_pod import NO_MANIFEST, Pod

MEBIBYTE = "x" * (1 << 20)
MAPS = {(name,) for name in ("annotations", "labels", "nodeSelector", "limits", "requests")}


def stored(*, gated: bool = True, **annotations: str) -> dict[str, Any]:
    """Return a pod with every field that is read."""
    made = builders.counted(builders.pod(**{"request": "0.5", "group": "ring", "group_size": "2", **annotations}))
    owner = {"kind": "Job", "name": "train", "uid": "j", "controller": True}
    made["metadata"] |= {
        "uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T00:00:05Z", "labels": {"app": "a"}, "ownerReferences": [owner],
    }  # fmt: skip
    made["spec"] |= {
        "priority": 5, "nodeSelector": {"pool": "a"}, "initContainers": [{"name": "first", "resources": {}}],
        "schedulingGates": [{"name": contract.SCHEDULING_GATE}, {"name": "example.com/quota"}] if gated else [],
    }  # fmt: skip
    if not gated:
        made["spec"]["nodeName"] = "node-a"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    return {**made, "status": {"phase": "Pending", "conditions": [condition], "containerStatuses": [{}]}}


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the path of every field of every object."""
    if isinstance(value, list):
        return [path for at, item in enumerate(value) for path in paths(item, (*before, at))]
    if not isinstance(value, dict):
        return []
    return [path for key, item in value.items() for path in ((*before, key), *paths(item, (*before, key)))]


@pytest.mark.slow
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "placed"])
@given(st.data())
def test_law_null_is_as_good_as_absent(gated: bool, data: st.DataObject) -> None:
    whole = stored(gated=gated, allocation="a1", node="node-a")
    fields = [path for path in paths(whole) if path[-2:-1] not in MAPS]  # the API server stores no null in those
    null, absent = copy.deepcopy(whole), copy.deepcopy(whole)
    for path in data.draw(st.lists(st.sampled_from(fields), max_size=3, unique=True)):
        for item, is_null in ((null, True), (absent, False)):
            at: Any = item
            for step in path[:-1]:
                at = at[step] if isinstance(at, list) or at.get(step) is not None else {}
            if is_null:
                at[path[-1]] = None
            else:
                at.pop(path[-1], None)
    assert Pod.from_manifest(null) == Pod.from_manifest(absent)


def test_annotations_on_a_pod_are_read_once() -> None:
    read = Pod.from_manifest(stored(allocation="a1", node="node-a"))
    assert (read.allocation_id, read.placed_on, read.group, read.group_size) == ("a1", "node-a", "ring", (2, 2))
    assert (read.foreign_gates, read.priority, read.version) == (("example.com/quota",), 5, "7")
    assert read.controller == pod.Controller("Job", "train", "j")
    assert read.path == "/api/v1/namespaces/default/pods/trainer"
    assert read.request == requests.parse(stored())
    assert Pod.from_manifest(stored(request="a lot")).request == (
        'gpushare.io/request "a lot" is not a part of a GPU: write it as "0.5", "50%" or "500m"'
    )


def test_gated_pod_with_mismatched_resources_has_an_invalid_request() -> None:
    assert str(Pod.from_manifest(stored(request="0.9")).request).startswith(
        "its gpushare.io annotations no longer match"
    )
    asks_for_more = stored(gated=False, request="0.9")
    assert Pod.from_manifest(asks_for_more).request == requests.parse(asks_for_more)


def test_a_pod_that_does_not_wait_is_kept_without_its_manifest() -> None:
    assert Pod.from_manifest(stored(gated=False)).manifest is NO_MANIFEST


def test_foreign_annotations_are_not_kept() -> None:
    """A user can write 256 KiB of annotations on each pod: two thousand waiting pods once filled a replica's memory."""
    manifest = stored()
    ours = {key: text for key, text in manifest["metadata"]["annotations"].items() if key.startswith(contract.PREFIX)}
    manifest["metadata"]["annotations"] |= {"example.com/notes": MEBIBYTE, contract.MIRROR_ANNOTATION: MEBIBYTE}
    manifest["metadata"]["annotations"][pod.DEFAULT_CONTAINER] = MEBIBYTE
    read = Pod.from_manifest(manifest)
    assert len(repr(read)) < 3000
    assert read.annotations == ours
    assert read.is_exempt
    manifest["metadata"]["annotations"][pod.DEFAULT_CONTAINER] = "main"
    assert requests.parse(Pod.from_manifest(manifest).manifest) == requests.parse(manifest)


@pytest.mark.slow
def test_deleted_pod_leaves_little_memory_in_use() -> None:
    """Equal parts of pods are shared objects, which once kept a megabyte of labels after the pods were deleted."""
    # The texts themselves are there from the start: Python's table of shared texts grows as it likes.
    texts = [(sys.intern(f"{place}-{'x' * 40}"), sys.intern("y" * 60)) for place in range(10_000)]

    def pod_info(pairs: list[tuple[str, str]]) -> PodInfo:
        made: dict[str, Any] = builders.pod()
        made["metadata"]["labels"] = dict(pairs)
        return PodInfo.from_manifest(made, "node-a")

    def come_and_go() -> None:
        for number in range(5):
            pod_info(texts[number:])

    assert left_bytes(come_and_go) < sys.getsizeof(pod_info(texts).labels)
    assert pod_info(texts[:5]).labels is pod_info(texts[:5]).labels
