"""The node's allocatable amounts of gpushare's resources."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.state import advertisement
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef, Steps
from gpushare.gpunode import Gpu, GpuNode, Mode
from tests import builders

PERCENT, IDLE, MEMORY = contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE, contract.RESOURCE_MEMORY
GIB = 1 << 30
GPUS = builders.node(gpus=2).gpus
FIRST, SECOND = (gpu.uuid for gpu in GPUS)


def pod(*amounts: dict[str, str], name: str = "a", uid: str = "u", phase: str = "Running") -> dict[str, Any]:
    containers = [{"name": f"c{number}", "resources": {"limits": limits}} for number, limits in enumerate(amounts)]
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": uid, "annotations": {contract.ALLOCATION: f"of-{name}"}},
        "spec": {"containers": containers},
        "status": {"phase": phase},
    }


def node(*shares: GivenShare, name: str = "a", uid: str = "u") -> GpuNode:
    return GpuNode("n", allocations=(Allocation(f"of-{name}", PodRef("ml", name, uid), shares),))


def share(request: int, memory: int, *gpus: str) -> GivenShare:
    return GivenShare(("c0",), gpus or (FIRST,), request, 100, memory)


def units(there: GpuNode | None, *pods: dict[str, Any], gpus: tuple[Gpu, ...] = GPUS) -> tuple[int, int]:
    """Return the percent and the GiB of two GPUs."""
    amounts = advertisement.allocatable(gpus, there, pods)
    return amounts[PERCENT], amounts[MEMORY] // GIB


def test_healthy_gpus_count_in_full() -> None:
    assert units(None) == (200, 160)
    assert advertisement.allocatable(GPUS, None, ())[IDLE] == 2 * contract.IDLE_SHARES_PER_GPU
    assert units(None, gpus=tuple(dataclasses.replace(gpu, mode=Mode.EXCLUSIVE) for gpu in GPUS)) == (0, 0)


def test_a_pod_whose_share_equals_its_requests_changes_nothing() -> None:
    manifest = pod({PERCENT: "50", MEMORY: "8Gi"})
    assert units(node(share(50, 8 * GIB)), manifest) == (200, 160)
    assert units(node(share(80, 9 * GIB)), manifest) == (200, 160)  # it has grown, so the ledger is stricter


def test_memory_that_a_pod_gave_up_is_allocatable_again() -> None:
    manifest = pod({PERCENT: "100", MEMORY: "16Gi"})
    assert units(node(share(20, 5 * GIB, SECOND, FIRST)), manifest) == (260, 166)


def test_a_pod_that_has_not_shrunk_yet_counts_in_full() -> None:
    given_now = GivenShare(("c0",), (FIRST,), 50, 100, 8 * GIB, shrink_to_bytes=GIB)
    assert units(node(given_now), pod({MEMORY: "8Gi"})) == (200, 160)


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
def test_a_pod_without_a_matching_allocation_changes_nothing(manifest: dict[str, Any], there: GpuNode | None) -> None:
    assert units(there, manifest) == (200, 160)


def test_pods_on_an_unhealthy_gpu_do_not_reduce_a_healthy_one() -> None:
    sick = (dataclasses.replace(GPUS[0], healthy=False), GPUS[1])
    assert units(None, gpus=sick) == (100, 80)
    has_it = node(share(100, 40 * GIB))
    assert units(has_it, pod({PERCENT: "100", MEMORY: "40Gi"}), gpus=sick) == (200, 120)
    assert units(has_it, gpus=GPUS[1:]) == (200, 120)  # the GPU is gone while its pod is on its way
    changing = (dataclasses.replace(GPUS[0], pending_mode=Mode.EXCLUSIVE), GPUS[1])
    assert units(has_it, gpus=changing) == (200, 120)


def test_a_backfill_reservation_on_an_unhealthy_gpu_does_not_count() -> None:
    hold = Allocation("hold-a", PodRef("ml", "a", ""), (share(100, GIB),))
    sick = (dataclasses.replace(GPUS[0], healthy=False), GPUS[1])
    assert units(GpuNode("n", allocations=(hold,)), gpus=sick) == (100, 80)


def test_shares_of_init_containers_count_as_in_the_scheduler() -> None:
    manifest = pod({PERCENT: "70", MEMORY: "40Gi"})
    warm = {PERCENT: "80", MEMORY: "8Gi"}
    manifest["spec"]["initContainers"] = [{"name": "warm", "resources": {"limits": warm}}]
    in_turn = (
        dataclasses.replace(share(80, 8 * GIB), containers=("warm",), steps=Steps(0, 0)),
        dataclasses.replace(share(70, 40 * GIB), steps=Steps(1)),
    )
    assert units(node(*in_turn), manifest) == units(None)
    sick = (dataclasses.replace(GPUS[0], healthy=False), GPUS[1])
    assert units(node(*in_turn), manifest, gpus=sick) == (100 + 80, 80 + 40)


def test_a_trimmed_pod_counts_as_the_whole_pod() -> None:
    manifest = pod({PERCENT: "50", MEMORY: "8Gi", "cpu": "2"}, {PERCENT: "20"})
    manifest["spec"]["initContainers"] = [
        {"name": "warm", "resources": {"limits": {PERCENT: "90"}}, "image": "x"},
        {"name": "side", "restartPolicy": "Always", "resources": {"limits": {PERCENT: "5"}}},
    ]
    there = node(share(10, GIB))
    trimmed = {**manifest, "spec": advertisement.trimmed_resources(manifest)}
    assert units(there, manifest) == units(there, trimmed) != units(None)
    assert "cpu" not in str(trimmed)
    assert "image" not in str(trimmed)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=6))
def test_the_count_admits_every_pod_that_fits_the_ledger(pods: list[tuple[int, int]]) -> None:
    """counted, given: the amounts of each pod on the only GPU."""
    used = 0
    manifests, entries = [], []
    for number, (counted, has) in enumerate(pods):
        if used + has > 100:
            continue
        used += has
        manifests.append(pod({PERCENT: str(counted)}, name=str(number), uid=str(number)))
        entries.append(node(share(has, 0), name=str(number), uid=str(number)).allocations[0])
    amounts = advertisement.allocatable(GPUS[:1], GpuNode("n", allocations=tuple(entries)), manifests)
    counted = sum(int(manifest["spec"]["containers"][0]["resources"]["limits"][PERCENT]) for manifest in manifests)
    assert counted + (100 - used) <= amounts[PERCENT]


def test_the_amount_rises_at_once_and_falls_late() -> None:
    now, amounts = [0.0], {PERCENT: 200, MEMORY: 5}
    stabilized = advertisement.DelayedDecrease(lambda _: dict(amounts), clock=lambda: now[0])
    assert (stabilized(()), stabilized.decrease_in_seconds) == ({PERCENT: 200, MEMORY: 5}, math.inf)
    amounts[PERCENT] = 100
    assert (stabilized(()), stabilized.decrease_in_seconds) == (
        {PERCENT: 200, MEMORY: 5},
        advertisement.DECREASE_SECONDS,
    )
    now[0], amounts[MEMORY] = 2.0, 9
    assert stabilized(()) == {PERCENT: 200, MEMORY: 9}
    now[0] = advertisement.DECREASE_SECONDS
    assert stabilized(()) == {PERCENT: 100, MEMORY: 9}
    assert stabilized.decrease_in_seconds == 2.0  # one more check, which will find no change
