"""An elastic gang starts with its minimum at least, and others join as room appears."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, ledger
from gpushare.allocation import PodRef
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster


def create(cluster: Cluster, *numbers: int, group: str = "ring", size: str = "2-4", **asked: Any) -> None:
    for number in numbers:
        cluster.create(f"{group}-{number}", group=group, group_size=size, **{"request": "1", **asked})


def placed(cluster: Cluster, group: str = "ring") -> set[str]:
    return {name for name in cluster.pods if name.startswith(f"{group}-")} - set(cluster.waiting())


async def test_an_elastic_gang_starts_with_as_many_as_fit_and_the_others_join() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    await cluster.arrive("holder", request="1")
    create(cluster, *range(4))
    await cluster.step()
    assert placed(cluster) == {"ring-0", "ring-1", "ring-2"}
    assert cluster.told["ring-3"].startswith("no GPU fits 1 GPU")
    await cluster.end("holder")
    await cluster.step()
    assert cluster.waiting() == []


async def test_fewer_than_the_minimum_start_nothing() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    await cluster.arrive("holder", request="0.1")
    create(cluster, 0)
    await cluster.step()
    assert cluster.told["ring-0"] == 'waits for 1 more of its group "ring" (have 1 of at least 2)'
    create(cluster, 1, 2)
    await cluster.step()
    assert cluster.shares() == {"holder"}
    assert cluster.told["ring-2"].startswith('its group "ring" waits for ring-1: no GPU fits')


async def test_a_member_that_leaves_above_the_minimum_disturbs_no_other() -> None:
    cluster = Cluster(builders.node("node-a", gpus=3))
    create(cluster, *range(3))
    await cluster.step()
    await cluster.end("ring-1")
    await cluster.arrive("holder", request="1")
    create(cluster, 4)
    await cluster.step()
    assert placed(cluster) == {"ring-0", "ring-2"}
    await cluster.end("holder")
    await cluster.step()
    assert placed(cluster) == {"ring-0", "ring-2", "ring-4"}


async def test_below_the_minimum_a_new_member_joins_those_that_still_run() -> None:
    cluster = Cluster(builders.node("node-a", gpus=3))
    create(cluster, *range(3), size="3-4")
    await cluster.step()
    await cluster.end("ring-0")
    await cluster.end("ring-1")
    create(cluster, 5, size="3-4")
    await cluster.step()
    assert placed(cluster) == {"ring-2"}
    create(cluster, 6, size="3-4")
    await cluster.step()
    assert cluster.waiting() == []


async def test_a_pod_above_the_maximum_waits_until_another_ends() -> None:
    cluster = Cluster(builders.node("node-a", gpus=8))
    create(cluster, *range(6))
    await cluster.step()
    await cluster.step()
    assert len(placed(cluster)) == 4
    assert cluster.told["ring-5"] == (
        'its group "ring" already has 4 other pods running or waiting ahead of it, the maximum of its '
        "gpushare.io/group-size 2-4: it waits until one ends"
    )
    await cluster.end("ring-0")
    await cluster.step()
    assert len(placed(cluster)) == 4


async def test_after_members_have_succeeded_the_others_start_with_the_minimum() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    create(cluster, *range(6))
    for made in cluster.pods.values():
        made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "job", "uid": "job", "controller": True}]
    await cluster.step()
    ended = placed(cluster)
    assert len(ended) == 2
    for name in ended:
        cluster.pods[name] = {**cluster.pods[name], "status": {"phase": "Succeeded"}}
    shares = [entry.id for view in cluster.store.views() for entry in view.node.allocations]
    cluster.store.change("node-a", lambda node: ledger.release(node, shares))
    await cluster.arrive("holder", request="1")
    await cluster.step()
    assert placed(cluster) == ended
    await cluster.end("holder")
    await cluster.step()
    assert len(placed(cluster) - ended) == 2


async def test_a_member_that_is_being_deleted_counts_until_it_has_ended() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    create(cluster, *range(4), size="1-3")
    await cluster.step()
    made = cluster.pods["ring-0"]
    cluster.pods["ring-0"] = {
        "metadata": {**made["metadata"], "deletionTimestamp": "2026-01-01T00:00:01Z"},
        "spec": {**made["spec"], "nodeName": "node-a"},
        "status": {"phase": "Running", "containerStatuses": [{}]},
    }
    await cluster.step()
    assert len(cluster.shares()) == 3
    assert cluster.waiting() == ["ring-3"]
    await cluster.end("ring-0")
    await cluster.step()
    assert cluster.waiting() == []


async def test_a_member_with_an_invalid_request_keeps_none_out() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    create(cluster, 0, size="1-2")
    await cluster.step()
    create(cluster, 1, 2, size="1-2")
    cluster.pods["ring-1"]["metadata"]["annotations"][contract.REQUEST] = "many"
    await cluster.step()
    assert placed(cluster) == {"ring-0", "ring-2"}
    assert "many" in cluster.told["ring-1"]


async def test_members_with_other_ranges_are_reported() -> None:
    cluster = Cluster(builders.node("node-a", gpus=8))
    create(cluster, 0)
    create(cluster, 2, size="2-8")
    await cluster.step()
    assert set(cluster.told.values()) == {
        'its group "ring" has several sizes: 2-4 in pod ring-0 and 2-8 in pod ring-2; '
        "delete the pods with the wrong gpushare.io/group-size and recreate them"
    }


async def test_a_pod_that_joins_goes_to_its_gang() -> None:
    cluster = Cluster(builders.node("node-a", gpus=3), builders.node("node-b", gpus=4))
    await cluster.arrive("holder", request="1")  # packed onto node-a, where only two GPUs are left
    create(cluster, 0, 1, 2, size="3-4")
    await cluster.step()
    nodes = {cluster.pods[name]["metadata"]["annotations"][contract.NODE] for name in placed(cluster)}
    assert nodes == {"node-b"}
    await cluster.end("holder")
    create(cluster, 3, size="3-4")
    await cluster.step()
    assert cluster.pods["ring-3"]["metadata"]["annotations"][contract.NODE] == "node-b"


async def test_two_elastic_gangs_do_not_wait_for_each_other() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    for number in range(4):
        for group in ("red", "blue"):
            create(cluster, number, group=group, size="3-4")
    await cluster.step()
    assert (len(placed(cluster, "blue")), len(placed(cluster, "red"))) == (4, 0)
    for name in placed(cluster, "blue"):
        await cluster.end(name)
    await cluster.step()
    assert cluster.waiting() == []


@pytest.mark.parametrize("left", [1, 2, 3])
async def test_next_placer_completes_an_elastic_gang(left: int) -> None:
    cluster = Cluster(builders.node("node-a", gpus=3))
    create(cluster, *range(4))
    for number in range(left):  # a placer ended after so many reservations
        entry = builders.allocation(
            f"a{number}", f"GPU-node-a-{number}", request=100, memory_gib=80, reserved_until=60.0
        )
        entry = dataclasses.replace(entry, pod=PodRef("default", f"ring-{number}", f"u-ring-{number}"))
        cluster.store.change("node-a", lambda node, entry=entry: ledger.reserve(node, entry))
    await cluster.step()
    assert cluster.waiting() == ["ring-3"]
    entries = [entry for view in cluster.store.views() for entry in view.node.allocations]
    assert {f"a{number}" for number in range(left)} <= {entry.id for entry in entries}
    assert all(entry.reserved_until is None for entry in entries)


RANGES = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.slow
@given(st.integers(1, 6), st.lists(RANGES, min_size=1, max_size=3), st.lists(st.integers(0, 40), max_size=12))
@settings(max_examples=60, deadline=None)
def test_law_no_gang_starts_below_its_minimum_or_waits_for_nothing(
    gpus: int, ranges: list[tuple[int, int]], ends: list[int]
) -> None:
    async def story() -> None:
        cluster = Cluster(builders.node("node-a", gpus=gpus))
        groups = {f"g{number}": asked for number, asked in enumerate(ranges)}
        for group, (least, most) in groups.items():
            create(cluster, *range(most), group=group, size=f"{least}-{most}")
        for end in [*ends, *([-1] * 2)]:
            before = {group: placed(cluster, group) for group in groups}
            await cluster.step()
            for group, (least, most) in groups.items():
                assert before[group] <= placed(cluster, group)
                began = placed(cluster, group) - before[group]
                assert not began or least <= len(placed(cluster, group)) <= most
            running = sorted(set(cluster.pods) - set(cluster.waiting()))
            if end >= 0 and running:
                await cluster.end(running[end % len(running)])
        # Nothing has ended since the round before: a gang that fits has started, and a pod that fits has joined.
        free = gpus - len(cluster.shares())
        for group, (least, _) in groups.items():
            there = [name for name in cluster.pods if name.startswith(f"{group}-")]
            have = len(placed(cluster, group))
            needed = max(1, least - have)
            assert have == len(there) or len(there) - have < needed or needed > free

    asyncio.run(story())
