"""Of a pod that asks for a share so much is kept as the placer looks at, whatever else is on it; null is as absent."""

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
    """A pod with all that is looked at."""
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
    """Of every field of every object."""
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
    assert Pod.of(null) == Pod.of(absent)


def test_what_is_written_on_a_pod_is_read_once() -> None:
    read = Pod.of(stored(allocation="a1", node="node-a"))
    assert (read.allocation_id, read.placed_on, read.group, read.group_size) == ("a1", "node-a", "ring", 2)
    assert (read.foreign_gates, read.priority, read.version) == (("example.com/quota",), 5, "7")
    assert read.controller == pod.Controller("Job", "train", "j")
    assert read.path == "/api/v1/namespaces/default/pods/trainer"
    assert read.request == requests.parse(stored())
    assert Pod.of(stored(request="a lot")).request == (
        'gpushare.io/request "a lot" is not a part of a GPU: write it as "0.5", "50%" or "500m"'
    )


def test_of_a_gated_pod_annotations_agree_with_its_resources_or_its_request_makes_no_sense() -> None:
    assert str(Pod.of(stored(request="0.9")).request).startswith("its gpushare.io annotations no longer agree with")
    asks_for_more = stored(gated=False, request="0.9")
    assert Pod.of(asks_for_more).request == requests.parse(asks_for_more)


def test_a_pod_that_does_not_wait_is_kept_without_its_manifest() -> None:
    assert Pod.of(stored(gated=False)).manifest is NO_MANIFEST


def test_of_annotations_of_others_little_is_kept() -> None:
    """Who has a namespace has a quarter of a megabyte of them on each pod: two thousand that wait filled a replica."""
    manifest = stored()
    ours = {key: text for key, text in manifest["metadata"]["annotations"].items() if key.startswith(contract.PREFIX)}
    manifest["metadata"]["annotations"] |= {"example.com/notes": MEBIBYTE, contract.MIRROR_ANNOTATION: MEBIBYTE}
    manifest["metadata"]["annotations"][pod.DEFAULT_CONTAINER] = MEBIBYTE
    read = Pod.of(manifest)
    assert len(repr(read)) < 3000
    assert read.annotations == ours
    assert read.is_exempt
    manifest["metadata"]["annotations"][pod.DEFAULT_CONTAINER] = "main"
    assert requests.parse(Pod.of(manifest).manifest) == requests.parse(manifest)


@pytest.mark.slow
def test_a_pod_that_has_gone_leaves_nothing_large_behind() -> None:
    """Equal parts of pods are one object, which is kept when the pods have gone: so it was with a megabyte of labels."""
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
