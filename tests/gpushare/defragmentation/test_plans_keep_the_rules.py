"""For any request, no plan moves a protected pod, exceeds a budget, or overcommits a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract
from gpushare.defragmentation import goals
from gpushare.defragmentation.evicting import Budgets
from gpushare.whatif.requesting_pod import RequestingPod
from tests.gpushare.defragmentation.clusters import cluster, owned

GPUS = [f"n{node}/{index}" for node in range(3) for index in range(2)]
PRIORITIES = st.sampled_from([0, 0, 5, 10])
PODS = st.lists(
    st.tuples(
        st.sampled_from([10, 20, 30, 50, 60]),
        st.sampled_from(GPUS),
        st.sampled_from(["ReplicaSet", "ReplicaSet", "ReplicaSet", ""]),
        PRIORITIES,
        st.sampled_from("abc"),
        st.sampled_from(["false", "false", "false", "true"]),
    ),
    min_size=2,
    max_size=10,
)
WANTED = st.lists(
    st.tuples(st.sampled_from([50, 80, 100]), st.sampled_from([1, 1, 2]), PRIORITIES), min_size=1, max_size=3
)
ALLOWED = st.fixed_dictionaries({"a": st.integers(0, 3), "b": st.integers(0, 3)})


def budget(app: str, allowed: int) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": app},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    }


def size(manifest: dict[str, Any]) -> int:
    return round(float(manifest["metadata"]["annotations"][contract.REQUEST]) * 100)


@pytest.mark.slow
@given(PODS, WANTED, ALLOWED)
@settings(max_examples=150, deadline=None)
def test_every_move_is_allowed_and_has_room(
    pods: list[tuple[int, str, str, int, str, str]],
    wanted: list[tuple[int, int, int]],
    allowed: dict[str, int],
) -> None:
    load: Counter[str] = Counter()
    there: dict[str, tuple[dict[str, Any], str]] = {}
    for number, (percent, where, kind, priority, app, stays) in enumerate(pods):
        if load[where] + percent <= 100:
            load[where] += percent
            manifest = owned(
                f"p{number}", request=f"{percent / 100}", kind=kind, priority=priority, app=app, no_evict=stays
            )
            there[f"p{number}"] = manifest, where
    waiting = [
        (
            f"w{number}",
            RequestingPod.from_manifest(
                owned(f"w{number}", request=f"{percent / 100}", gpus=str(gpus), priority=priority)
            ),
        )
        for number, (percent, gpus, priority) in enumerate(wanted)
    ]
    budgets = Budgets.from_manifests([budget(app, count) for app, count in allowed.items()])
    plan = goals.make_room(cluster(*there.values(), nodes=3), waiting, budgets)

    evicted: Counter[str] = Counter()
    for step in plan.steps:
        for move in step.moves:
            manifest, where = there.pop(move.manifest["metadata"]["name"])  # no pod moves twice
            metadata = manifest["metadata"]
            assert metadata["ownerReferences"]
            assert metadata["annotations"][contract.NO_EVICT] == "false"
            assert manifest["spec"]["priority"] <= step.asked.manifest["spec"]["priority"]
            evicted[metadata["labels"]["app"]] += 1
            assert (move.before, move.after in GPUS) == (where, True)
            assert move.after not in {f"{node}/{uuid[-1]}" for node, uuid in move.closed}
            load[move.before] -= size(manifest)
            load[move.after] += size(manifest)
            assert load[move.after] <= 100
        node, _, indexes = step.gpus.partition("/")
        for index in filter(None, indexes.split(",")):
            load[f"{node}/{index}"] += size(step.asked.manifest)
            assert load[f"{node}/{index}"] <= 100
    assert all(evicted[app] <= count for app, count in allowed.items())
