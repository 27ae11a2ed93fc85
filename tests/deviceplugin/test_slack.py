"""What pods count for and do not have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import node_capacity, slack
from deviceplugin.kubelet import advertisement
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import GpuNode
from tests import builders

PERCENT, MEMORY = contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY
GIB = 1 << 30
CARDS = builders.node(gpus=2).gpus
FIRST, SECOND = (card.uuid for card in CARDS)


def pod(*amounts: dict[str, str], name: str = "a", uid: str = "u", phase: str = "Running") -> dict[str, Any]:
    containers = [{"name": f"c{one}", "resources": {"limits": each}} for one, each in enumerate(amounts)]
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": uid, "annotations": {contract.ALLOCATION: f"of-{name}"}},
        "spec": {"containers": containers},
        "status": {"phase": phase},
    }


def node(*shares: GivenShare, name: str = "a", uid: str = "u") -> GpuNode:
    return GpuNode("n", allocations=(Allocation(f"of-{name}", PodRef("ml", name, uid), shares),))


def share(request: int, memory: int, *gpus: str) -> GivenShare:
    return GivenShare(("c0",), gpus or (FIRST,), request, 100, memory)


def test_a_pod_that_has_what_it_counts_for_leaves_nothing() -> None:
    manifest = pod({PERCENT: "50", MEMORY: "8Gi"})
    assert slack.slack(node(share(50, 8 * GIB)), [manifest]) == {}
    assert slack.slack(node(share(80, 9 * GIB)), [manifest]) == {}  # it has grown: the ledger is the stricter one


def test_what_a_pod_has_given_up_is_offered_again() -> None:
    manifest = pod({PERCENT: "100", MEMORY: "16Gi"})
    found = slack.slack(node(share(20, 5 * GIB, SECOND, FIRST)), [manifest])
    assert found == {PERCENT: {SECOND: 60}, MEMORY: {SECOND: 6 * GIB}}


def test_a_pod_that_is_to_shrink_still_has_all_of_it() -> None:
    given_now = GivenShare(("c0",), (FIRST,), 50, 100, 8 * GIB, shrink_to_bytes=GIB)
    assert slack.slack(node(given_now), [pod({MEMORY: "8Gi"})]) == {}


@pytest.mark.parametrize(
    ("manifest", "there"),
    [
        (pod({PERCENT: "50"}, phase="Succeeded"), node(share(20, GIB))),
        (pod({PERCENT: "50"}), node(share(20, GIB), uid="another")),
        (pod({PERCENT: "50"}), None),
        (pod({PERCENT: "50"}, name="b"), node(share(20, GIB))),
        ({}, node(share(20, GIB))),
    ],
)
def test_who_counts_for_nothing_or_is_not_known_leaves_nothing(manifest: dict[str, Any], there: GpuNode | None) -> None:
    assert slack.slack(there, [manifest]) == {}


def test_what_is_kept_of_a_spec_counts_as_the_whole_of_it() -> None:
    manifest = pod({PERCENT: "50", MEMORY: "8Gi", "cpu": "2"}, {PERCENT: "20"})
    manifest["spec"]["initContainers"] = [
        {"name": "warm", "resources": {"limits": {PERCENT: "90"}}, "image": "x"},
        {"name": "side", "restartPolicy": "Always", "resources": {"limits": {PERCENT: "5"}}},
    ]
    there = node(share(10, GIB))
    trimmed = {**manifest, "spec": slack.trimmed(manifest)}
    assert slack.slack(there, [manifest]) == slack.slack(there, [trimmed]) != {}
    assert "cpu" not in str(trimmed)
    assert "image" not in str(trimmed)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=6))
def test_whatever_the_ledger_has_room_for_the_counters_have_room_for(pods: list[tuple[int, int]]) -> None:
    """counted, given: of each pod on the one GPU."""
    used = 0
    manifests, entries = [], []
    for number, (counted, has) in enumerate(pods):
        if used + has > 100:
            continue
        used += has
        manifests.append(pod({PERCENT: str(counted)}, name=str(number), uid=str(number)))
        entries.append(node(share(has, 0), name=str(number), uid=str(number)).allocations[0])
    found = slack.slack(GpuNode("n", allocations=tuple(entries)), manifests)
    offered = 100 + found.get(PERCENT, {}).get(FIRST, 0)
    counted = sum(int(one["spec"]["containers"][0]["resources"]["limits"][PERCENT]) for one in manifests)
    assert counted + (100 - used) <= offered


def test_the_kubelet_has_so_many_more_devices_and_the_node_so_many_more_bytes() -> None:
    found = advertisement.of_shares(CARDS, slack={PERCENT: {FIRST: 30}})
    assert len(found[PERCENT]) == len({device.id for device in found[PERCENT]}) == 230
    held = f"{FIRST}::120"
    after = advertisement.of_shares(CARDS, in_use={PERCENT: [held]})
    assert len(after[PERCENT]) == 200  # nothing is left over, and who holds one keeps it
    assert held in {device.id for device in after[PERCENT]}
    whole = sum(card.memory_bytes for card in CARDS)
    assert node_capacity.shareable_bytes(CARDS, {SECOND: GIB, "gone": GIB}) == whole + GIB
