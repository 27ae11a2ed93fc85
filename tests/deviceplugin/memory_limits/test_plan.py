"""Which limits the cgroups of a pod should have, from the ledger."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import tenant
from deviceplugin.hardware.nvml_limits import NO_LIMIT, MemoryLimits
from deviceplugin.host.kernel_process import Container
from deviceplugin.memory_limits import plan
from deviceplugin.memory_limits.plan import HardLimit, HardLimitState, LimitInputs, PodCgroup
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, Isolation, Labels, PodRef, Steps
from gpushare.gpunode import GpuNode, MemoryEnforcement, Resize
from tests import builders

GIB = 1 << 30
GPU, OTHER = "GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001"
POD = Path("/cgroup/kubepods/podu-1")
INPUTS = LimitInputs({GPU: 16 * GIB})


def given(*containers: str, memory: int = 2 * GIB, gpus: tuple[str, ...] = (GPU,), **more: Any) -> GivenShare:
    return GivenShare(containers or ("main",), gpus, 50, 100, memory, **more)


def pod(*containers: str) -> dict[str, Any]:
    statuses = [{"name": name, "containerID": f"containerd://id-{name}"} for name in containers]
    annotations = {contract.ALLOCATION: "a-1"}
    return {
        "metadata": {"namespace": "ml", "name": "web", "uid": "u-1", "annotations": annotations},
        "status": {"containerStatuses": statuses},
    }


def limits(
    *shares: GivenShare,
    containers: tuple[str, ...] = ("main",),
    named: tuple[str, ...] | None = None,
    inputs: LimitInputs = INPUTS,
    resizes: tuple[Resize, ...] = (),
    isolation: Isolation = Isolation.ARBITER,
) -> dict[tuple[str, str], int]:
    """Return the limits by container and GPU; the pod's own has no container's name."""
    entry = Allocation("a-1", PodRef("ml", "web", "u-1"), shares, labels=Labels(isolation=isolation))
    node = GpuNode("node-a", allocations=(entry,), resizes=resizes)
    there = PodCgroup(POD, {f"id-{name}": POD / name for name in containers})
    manifest = pod(*(containers if named is None else named))
    return {
        (limit.container, limit.gpu): limit.hard_bytes
        for limit in plan.hard_limits(node, [manifest], {"u-1": there}, inputs)
    }


def test_a_container_has_its_share_and_the_pod_the_sum() -> None:
    shares = (given("main"), given("side", memory=3 * GIB))
    assert limits(*shares, containers=("main", "side")) == {
        ("", GPU): 5 * GIB,
        ("main", GPU): 2 * GIB,
        ("side", GPU): 3 * GIB,
    }


def test_lent_memory_counts_while_it_is_published_and_the_arbiter_keeps_it() -> None:
    share = given("main", memory_limit_bytes=8 * GIB)
    said = Resize("a-1", 0, 6 * GIB, 5 * GIB)
    for published, applied, expected in (((), (), 2), ((said,), (said,), 6), ((said,), (), 2), ((), (said,), 2)):
        inputs = dataclasses.replace(INPUTS, applied=applied)
        assert set(limits(share, resizes=published, inputs=inputs).values()) == {expected * GIB}


def test_a_process_that_joins_does_not_lower_the_limit_of_a_container_that_is_lent_memory() -> None:
    share, said = given("main", memory_limit_bytes=8 * GIB), Resize("a-1", 0, 6 * GIB, 5 * GIB)
    node = GpuNode("node-a", allocations=(Allocation("a-1", PodRef("ml", "web", "u-1"), (share,)),), resizes=(said,))
    container = Container("u-1", "id-main")
    holder = tenant.find(container, pods=[pod("main")], node=node)
    assert isinstance(holder, tenant.Tenant)
    inputs = dataclasses.replace(INPUTS, applied=(said,))  # no report of the arbiter says yet what runs
    (joined,) = plan.of_container(container, holder, POD / "main", inputs, node=node)
    assert joined.hard_bytes == 6 * GIB == limits(share, resizes=(said,), inputs=inputs)["main", GPU]
    (unknown,) = plan.of_container(container, holder, POD / "main", inputs, node=None)
    assert unknown.hard_bytes == 2 * GIB


@pytest.mark.parametrize(("used_gib", "confirmed_gib"), [(1, []), (3, [6])])
def test_lent_memory_goes_back_once_the_driver_counts_no_more(used_gib: int, confirmed_gib: list[int]) -> None:
    """A program without the library may hold some of it."""
    share, said = given("main", memory_limit_bytes=8 * GIB), Resize("a-1", 0, 6 * GIB, 5 * GIB)
    node = GpuNode("node-a", allocations=(Allocation("a-1", PodRef("ml", "web", "u-1"), (share,)),), resizes=(said,))
    lowered = plan.lowered(node, (), INPUTS)
    assert lowered == {"a-1": {0: 6 * GIB}}
    state = HardLimitState(HardLimit(GPU, POD, 2 * GIB, "ml", "web", "u-1"), MemoryLimits(0, 2 * GIB, used_gib * GIB))
    after = plan.confirmed((), lowered, {"a-1": "u-1"}, [state])
    assert [resize.memory_bytes for resize in after] == [gib * GIB for gib in confirmed_gib]


def test_shares_that_are_in_use_in_turn_count_once() -> None:
    shares = (given("init", memory=4 * GIB, steps=Steps(0, 0)), given("main", steps=Steps(1)))
    assert limits(*shares)["", GPU] == 4 * GIB


def test_each_share_has_room_for_a_context() -> None:
    inputs = dataclasses.replace(INPUTS, context_bytes=lambda _: GIB)
    shares = (given("main"), given("side"))
    assert limits(*shares, containers=("main", "side"), inputs=inputs) == {
        ("", GPU): 6 * GIB,
        ("main", GPU): 3 * GIB,
        ("side", GPU): 3 * GIB,
    }


def test_no_limit_exceeds_the_gpu() -> None:
    inputs = dataclasses.replace(INPUTS, context_bytes=lambda _: GIB)
    assert set(limits(given("main", memory=16 * GIB), inputs=inputs).values()) == {16 * GIB}


def test_a_shrinking_share_keeps_what_its_processes_may_have() -> None:
    shrinking = given("main", shrink_to_bytes=GIB)
    running = dataclasses.replace(INPUTS, running={"u-1-0": 2 * GIB})
    assert set(limits(shrinking, inputs=running).values()) == {2 * GIB}
    applied = dataclasses.replace(INPUTS, applied=(Resize("a-1", 0, GIB, 0),))
    assert set(limits(shrinking).values()) == {2 * GIB}  # the arbiter may know processes that the agent does not
    assert set(limits(shrinking, inputs=applied).values()) == {GIB}
    assert set(limits(given("main"), inputs=applied).values()) == {2 * GIB}  # it grows again
    published = (Resize("a-1", 0, GIB, 0),)
    assert set(limits(shrinking, resizes=published).values()) == {GIB}  # the rest may belong to another share


def test_only_gpus_on_which_the_driver_keeps_limits_count() -> None:
    assert limits(given("main", gpus=(OTHER,))) == {}
    assert limits(given("main", gpus=(GPU, OTHER))).keys() == {("", GPU), ("main", GPU)}
    gpus = [
        dataclasses.replace(builders.gpu(), uuid=uuid, memory_enforcement=kind)
        for uuid, kind in ((GPU, MemoryEnforcement.DRIVER), (OTHER, MemoryEnforcement.LIBRARY))
    ]
    assert plan.able(None, gpus).keys() == {GPU}
    # what the driver says now counts more than what the last agent wrote
    was = GpuNode(
        "node-a", gpus=tuple(dataclasses.replace(gpu, memory_enforcement=MemoryEnforcement.DRIVER) for gpu in gpus)
    )
    assert plan.able(was, gpus[1:]).keys() == {GPU}


def test_shares_without_isolation_get_no_limit() -> None:
    assert limits(given("main"), isolation=Isolation.NONE) == {}


def test_an_unnamed_container_belongs_to_the_only_share() -> None:
    assert limits(given("main"), named=())["main", GPU] == 2 * GIB
    assert limits(given("main"), given("side"), named=()) == {("", GPU): 4 * GIB}


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (MemoryLimits(0, 2 * GIB, 5), ""),
        (MemoryLimits(0, 2 * GIB - 4096), ""),  # rounded to a page
        (MemoryLimits(0, 2 * GIB - (2 << 20)), "has a limit of 2145386496 bytes for"),
        (MemoryLimits(0, NO_LIMIT), "has no limit for"),
        (MemoryLimits(1 << 20, 2 * GIB), "has a limit of 2147483648 bytes and a soft limit of 1048576 bytes for"),
    ],
)
def test_a_limit_is_in_force_if_it_reads_back(read: MemoryLimits, sentence: str) -> None:
    said = plan.difference(HardLimit(GPU, POD, 2 * GIB, "ml", "web", "u-1"), read)
    assert sentence in said
    assert bool(said) is bool(sentence)


def confirmed(used_bytes: int | None, *, problem: str = "", published: bool = False) -> tuple[int, int]:
    """Lower a share from 4 to 2 GiB; return what the status says, with this use by the driver."""
    said = Resize("a-1", 0, 2 * GIB, GIB)
    entry = Allocation("a-1", PodRef("ml", "web", "u-1"), (given("main", memory=4 * GIB, shrink_to_bytes=2 * GIB),))
    node = GpuNode("node-a", allocations=(entry,), resizes=(said,) if published else ())
    lowered = plan.lowered(node, [said], INPUTS)
    state = HardLimitState(
        HardLimit(GPU, POD, 2 * GIB, "ml", "web", "u-1"), MemoryLimits(0, 2 * GIB, used_bytes or 0), problem
    )
    states = None if used_bytes is None else [state]
    (result,) = plan.confirmed([said], lowered, {"a-1": "u-1"}, states)
    return result.memory_bytes, result.used_bytes


def test_lowered_memory_is_free_once_the_driver_says_so() -> None:
    assert confirmed(2 * GIB) == (2 * GIB, GIB)
    assert confirmed(3 * GIB) == (4 * GIB, 3 * GIB)
    assert confirmed(0, problem="GPU is lost")[0] == 4 * GIB
    assert confirmed(None)[0] == 4 * GIB  # no answer
    assert confirmed(3 * GIB, published=True) == (2 * GIB, GIB)  # another share may have it by now
