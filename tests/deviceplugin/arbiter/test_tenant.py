"""The share of a container, from the pods and the GPUNode."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deviceplugin.arbiter import tenant
from deviceplugin.arbiter.tenant import Grant, Missing, NotYet, Tenant
from deviceplugin.host.kernel_process import Container
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import GpuNode, Resize
from gpushare.refusal import Refusal

UID = "4c8f9f3e-7a0b-4d0e-9b7d-0c5b8a1f2e3d"
FIRST = "GPU-00000000-0000-0000-0000-000000000001"
SECOND = "GPU-00000000-0000-0000-0000-000000000002"
MAIN = GivenShare(("main",), (FIRST, SECOND), 50, 80, 1000)
SIDE = GivenShare(("side", "warm-up"), (SECOND,), 0, 100, 7)


def pod(**ids: str) -> dict[str, Any]:
    statuses = [{"name": name, "containerID": f"containerd://{identity}"} for name, identity in ids.items()]
    return {
        "metadata": {"namespace": "ml", "name": "trainer", "uid": UID, "annotations": {contract.ALLOCATION: "a1"}},
        "status": {"containerStatuses": statuses[:1], "initContainerStatuses": statuses[1:]},
    }


def node(*shares: GivenShare, **holder: str) -> GpuNode:
    ref = PodRef(**{"namespace": "ml", "name": "trainer", "uid": UID, **holder})
    return GpuNode("node-a", allocations=(Allocation("a0", PodRef("x"), (SIDE,)), Allocation("a1", ref, shares)))


def find(identity: str, manifest: dict[str, Any], there: GpuNode | None) -> Tenant | Refusal | NotYet:
    return tenant.find(Container(UID, identity), pods=[{}, manifest], node=there)


def test_a_container_gets_its_own_share_on_each_gpu() -> None:
    assert find("c1", pod(main="c1"), node(MAIN)) == Tenant(
        UID, "ml", "trainer", ("main",), 0, (Grant(FIRST, 1000, 50, 80), Grant(SECOND, 1000, 50, 80)), allocation="a1"
    )


@pytest.mark.parametrize(("identity", "share"), [("c1", 0), ("c2", 1), ("c3", 1)])
def test_the_pods_status_selects_one_of_several_shares(identity: str, share: int) -> None:
    answer = find(identity, pod(main="c1", side="c2", **{"warm-up": "c3"}), node(MAIN, SIDE))
    assert isinstance(answer, Tenant)
    assert answer.share == share


def test_containers_of_one_share_have_one_key_and_others_another() -> None:
    manifest = pod(main="c1", side="c2", **{"warm-up": "c3"})
    keys = {identity: find(identity, manifest, node(MAIN, SIDE)).key for identity in ("c1", "c2", "c3")}  # type: ignore[union-attr]
    assert keys["c2"] == keys["c3"] != keys["c1"]


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"])
def test_the_status_identifies_every_kind_of_container(kind: str) -> None:
    manifest = {"status": {kind: [{"name": "main", "containerID": "cri-o://abc"}]}}
    assert tenant.container_name(manifest, "abc") == "main"
    assert tenant.container_name(manifest, "cri-o://abc") is None


def test_the_id_of_a_restarted_containers_predecessor_is_unknown() -> None:
    before = {"terminated": {"containerID": "containerd://old", "exitCode": 1}}
    manifest = {
        "status": {
            "containerStatuses": [
                {"name": "main", "containerID": "containerd://new", "lastState": before},
                {"name": "side", "containerID": "", "state": {"waiting": {}}},
            ]
        }
    }
    assert tenant.container_name(manifest, "new") == "main"
    assert tenant.container_name(manifest, "old") is None


def test_a_pod_with_one_share_needs_no_status() -> None:
    assert isinstance(find("c1", pod(), node(MAIN)), Tenant)


def test_a_pod_with_several_shares_waits_for_its_status() -> None:
    answer = find("c1", pod(), node(MAIN, SIDE))
    assert isinstance(answer, NotYet)
    assert answer.missing is Missing.CONTAINER


@pytest.mark.parametrize("there", [None, GpuNode("node-a")], ids=["no GPUNode", "no allocation"])
def test_an_absent_allocation_is_missing(there: GpuNode | None) -> None:
    answer = find("c1", pod(main="c1"), there)
    assert isinstance(answer, NotYet)
    assert answer.missing is Missing.ALLOCATION


def test_an_absent_pod_is_missing() -> None:
    answer = tenant.find(Container(UID, "c1"), pods=[], node=node(MAIN))
    assert answer == NotYet(Missing.POD, f"this node has no pod with the UID {UID}")


@pytest.mark.parametrize(
    "holder",
    [{"namespace": "other"}, {"name": "other"}, {"uid": "other"}, {"namespace": "other", "name": "", "uid": ""}],
    ids=str,
)
def test_the_ledger_overrides_the_annotation(holder: dict[str, str]) -> None:
    refusal = find("c1", pod(main="c1"), node(MAIN, **holder))
    assert isinstance(refusal, Refusal)
    assert "not by the pod ml/trainer" in str(refusal)


@pytest.mark.parametrize("holder", [{"uid": ""}, {"name": "", "uid": ""}], ids=str)
def test_an_allocation_without_uid_yet_is_no_contradiction(holder: dict[str, str]) -> None:
    assert isinstance(find("c1", pod(main="c1"), node(MAIN, **holder)), Tenant)


def test_an_invalid_gpu_uuid_is_refused() -> None:
    refusal = find("c1", pod(main="c1"), node(dataclasses.replace(MAIN, gpu_uuids=("GPU-7",))))
    assert refusal == Refusal("the allocation of the pod ml/trainer has the invalid GPU UUID GPU-7")


def test_more_gpus_than_fit_into_a_page_are_refused() -> None:
    many = tuple(f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(contract.MAX_GPUS + 1))
    refusal = find("c1", pod(main="c1"), node(dataclasses.replace(MAIN, gpu_uuids=many)))
    assert refusal == Refusal("the share has 64 GPUs, but a container can have 63 at most")


@pytest.mark.parametrize("kind", ["GPU", "MIG"])
def test_a_uuid_is_sixteen_bytes(kind: str) -> None:
    assert tenant.raw_uuid(f"{kind}-00010203-0405-0607-0809-0a0b0c0d0e0f") == bytes(range(16))


SHARE = Tenant(UID, "ml", "trainer", ("main",), 0, (Grant(FIRST, 1000, 50, 80), Grant(SECOND, 1000, 50, 80)))


@pytest.mark.parametrize("allocation", ["a1", ""])  # records of earlier agents have none
def test_a_running_share_is_found_in_the_ledger_again(allocation: str) -> None:
    there = node(MAIN)
    entry = tenant.find_allocation(dataclasses.replace(SHARE, allocation=allocation), there)
    assert entry == there.allocations[1]
    assert entry is not None
    after = dataclasses.replace(entry, shares=(dataclasses.replace(MAIN, request_percent=10),), latency=True)
    renewed = tenant.updated(SHARE, after, 7)
    assert renewed.grants == (Grant(FIRST, 7, 10, 80), Grant(SECOND, 7, 10, 80))
    assert (renewed.latency, renewed.allocation, renewed.memory_bytes) == (True, "a1", 7)


@pytest.mark.parametrize(
    "there",
    [
        GpuNode("node-a"),
        node(MAIN, uid="another"),
        node(dataclasses.replace(MAIN, gpu_uuids=(SECOND, FIRST))),
        node(),
    ],
)
def test_a_different_share_in_the_ledger_is_not_the_running_one(there: GpuNode) -> None:
    assert tenant.find_allocation(dataclasses.replace(SHARE, allocation="a1"), there) is None


@pytest.mark.parametrize(
    ("shrink_to", "told", "expected"),
    [
        (None, (), 1000),
        (400, (), 400),
        (None, (400,), 400),
        (300, (400,), 300),
        (400, (300,), 300),
        (400, (1000,), 400),
    ],
)
def test_the_memory_limit_is_the_lowest_of_ledger_shrink_and_status(
    shrink_to: int | None, told: tuple[int, ...], expected: int
) -> None:
    there = node(dataclasses.replace(MAIN, shrink_to_bytes=shrink_to))
    there = dataclasses.replace(there, resizes=(Resize("a0", 0, 1, 0), *(Resize("a1", 0, size, 0) for size in told)))
    assert tenant.memory_bytes(there, there.allocations[1], 0) == expected


def given(
    container: str, manifest: dict[str, Any], there: GpuNode | None
) -> tenant.StartingContainer | Refusal | NotYet:
    return tenant.find_by_name("ml", "trainer", container, pods=[{}, manifest], node=there)


def test_a_starting_container_is_found_by_its_name() -> None:
    there = node(MAIN, SIDE)
    assert given("main", pod(), there) == tenant.StartingContainer(
        "ml", "trainer", (FIRST, SECOND), pod_uid=UID, limit_percent=80, slot="a1/0"
    )
    named = {**pod(), "spec": {"runtimeClassName": "nvidia"}}
    assert given("warm-up", named, there) == tenant.StartingContainer(
        "ml", "trainer", (SECOND,), "nvidia", UID, slot="a1/1"
    )
    assert given("other", pod(), there) == Refusal("the container other of the pod ml/trainer has no share of a GPU")


def test_a_container_of_an_unknown_pod_or_allocation_may_appear_later() -> None:
    assert given("main", {}, node(MAIN)) == NotYet(Missing.POD, "this node has no pod ml/trainer")
    over = {**pod(), "status": {"phase": "Succeeded"}}
    assert given("main", over, node(MAIN)) == NotYet(Missing.POD, "this node has no pod ml/trainer")
    for there in (None, GpuNode("node-a")):
        answer = given("main", pod(), there)
        assert isinstance(answer, NotYet)
        assert answer.missing is Missing.ALLOCATION
    held = given("main", pod(), node(MAIN, uid="somebody-else"))
    assert isinstance(held, Refusal)
    assert "is held by" in held.reason
