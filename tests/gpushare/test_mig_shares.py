"""MIG devices for shares: the profile that a share gets, the place of its instance, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import errors, ledger, mig_shares, request, resizing
from gpushare.allocation import Allocation, Isolation, Labels, Memory, MigInstance, PodRef, Share
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.mig import catalogue
from gpushare.placement import Placement
from gpushare.placement.fleet import Fleet
from gpushare.refusal import Refusal
from gpushare.request import Request
from tests import builders

BOTH = (Isolation.ARBITER, Isolation.MIG)
GIB = builders.GIB


def node(name: str = "node-a", *, gpus: int = 1) -> GpuNode:
    geometry = builders.mig_geometry()
    return builders.node(name, gpus=gpus, model="NVIDIA H100 80GB HBM3", isolations=BOTH, mig_geometry=geometry)


def asked(**annotations: str) -> Request:
    return request.parse(builders.pod(containers=("main", "side"), **{"isolation": "mig", **annotations}))


def place(pod: Request, *nodes: GpuNode) -> Placement | Refusal:
    fleet = Fleet()
    for view in builders.views(*nodes):
        fleet.update(view)
    return fleet.place(pod)


def added(there: GpuNode, identity: str, pod: Request) -> GpuNode:
    """Return the node with a share for the pod, which fits."""
    outcome = place(pod, there)
    assert isinstance(outcome, Placement), outcome
    return ledger.reserve(
        there, outcome.allocation(pod, allocation_id=identity, pod=PodRef("default", identity), reserved_until=None)
    )


def devices(there: GpuNode) -> list[str]:
    return [str(share.mig) for entry in there.allocations for share in entry.shares]


@pytest.mark.parametrize(
    ("annotations", "profile"),
    [
        ({"memory": "1Gi"}, "1g.10gb"),
        ({"memory": "10Gi"}, "1g.10gb"),
        ({"memory": "11Gi"}, "1g.20gb"),
        ({"request": "0.14", "memory": "1Gi"}, "1g.10gb"),
        ({"request": "0.15", "memory": "1Gi"}, "2g.20gb"),
        ({"request": "0.12"}, "1g.10gb"),
        ({"request": "0.42"}, "3g.40gb"),
        ({"request": "0.5"}, "4g.40gb"),
        ({"request": "0.58"}, "7g.80gb"),
        ({"memory": "41Gi"}, "7g.80gb"),
        ({"request": "1"}, "7g.80gb"),
    ],
)
def test_share_gets_the_smallest_profile_that_holds_it(annotations: dict[str, str], profile: str) -> None:
    there = added(node(), "a", asked(**annotations))
    assert [device.partition("@")[0] for device in devices(there)] == [profile]


def test_device_is_counted_as_a_whole_and_the_share_keeps_what_it_asked_for() -> None:
    there = added(node(), "a", asked(request="0.1", memory="4Gi"))
    (share,) = there.allocations[0].shares
    assert (share.request_percent, share.memory_bytes) == (10, 4 * GIB)
    assert ledger.use(there)["GPU-node-a-0"].memory_bytes == 10 * GIB
    assert ledger.use(there)["GPU-node-a-0"].request_percent == 14


def test_small_devices_leave_the_places_of_the_large_ones() -> None:
    there = node()
    for name in "abc":
        there = added(there, name, asked(memory="1Gi"))
    assert devices(there) == ["1g.10gb@6", "1g.10gb@5", "1g.10gb@4"]
    assert devices(added(there, "d", asked(request="0.5"))) == [*devices(there), "4g.40gb@0"]


def test_share_joins_a_gpu_that_is_cut_already() -> None:
    there = added(node(gpus=4), "a", asked(memory="1Gi"))
    for name in "bcdefg":
        there = added(there, name, asked(memory="1Gi"))
    assert {entry.gpu_uuids for entry in there.allocations} == {("GPU-node-a-0",)}
    assert added(there, "h", asked(memory="1Gi")).allocations[-1].gpu_uuids == ("GPU-node-a-1",)


def test_devices_of_a_configured_layout_are_not_taken_for_shares() -> None:
    gpu = dataclasses.replace(node().gpus[0], mode=Mode.MIG, mig_profiles=("1g.10gb",))
    outcome = place(asked(memory="1Gi"), dataclasses.replace(node(), gpus=(gpu,)))
    assert isinstance(outcome, Refusal)
    assert outcome.reason.endswith("node-a/0 is in mode mig: request its MIG devices by resource, not by annotation")


def test_shares_of_other_kinds_never_meet_on_the_gpu() -> None:
    there = added(node(), "a", asked(memory="1Gi"))
    refused = place(asked(isolation="arbiter", memory="1Gi"), there)
    assert "node-a/0 is shared by default/a, which has isolation mig, not arbiter" in str(refused)
    with pytest.raises(errors.LedgerError, match="cannot have shares with isolation arbiter and mig at once"):
        ledger.reserve(there, builders.allocation("b", memory_gib=1, request=10))


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        (
            {"memory": "81Gi"},
            "of 1 GPU on 1 node, 1 without a MIG profile that holds it; nearest: node-a/0 has no MIG profile that "
            "holds idle compute with 81Gi: the largest, 7g.80gb, has 1 GPU with 80Gi; none of these can ever fit",
        ),
        (
            {"memory": "30Gi"},
            "of 1 GPU on 1 node, 1 without a place for its MIG device; nearest: node-a/0 has no place for a 3g.40gb "
            "next to 2g.20gb@0, 2g.20gb@4",
        ),
    ],
)
def test_share_without_a_device_is_refused_in_one_sentence(annotations: dict[str, str], says: str) -> None:
    there = node()
    for number, start in enumerate((0, 4)):
        there = ledger.reserve(there, with_device(f"a{number}", f"2g.20gb@{start}"))
    assert says in str(place(asked(**annotations), there))


def with_device(identity: str, device: str, uuid: str = "GPU-node-a-0") -> Allocation:
    made = mig_shares.read_device(node().gpus[0], device)
    entry = builders.allocation(identity, uuid, request=1, memory_gib=1, pod_name=identity, isolation=Isolation.MIG)
    return dataclasses.replace(entry, shares=(mig_shares.on_device(entry.shares[0], made),))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (with_device("b", "3g.40gb@4"), r"overlapping MIG devices: 3g.40gb@4 of default/b, and that of default/a"),
        (with_device("b", "1g.10gb@5"), "overlapping MIG devices"),
        (builders.allocation("b", request=1, memory_gib=1, isolation=Isolation.MIG), "which has no MIG device"),
    ],
)
def test_ledger_refuses_devices_that_overlap_and_shares_without_one(entry: Allocation, says: str) -> None:
    with pytest.raises(errors.LedgerError, match=says):
        ledger.reserve(ledger.reserve(node(), with_device("a", "2g.20gb@4")), entry)


def test_ledger_refuses_more_slices_than_the_gpu_has() -> None:
    there = node()
    for number, device in enumerate(("4g.40gb@0", "1g.10gb@4", "1g.10gb@5", "1g.10gb@6")):
        there = ledger.reserve(there, with_device(f"a{number}", device))
    made = MigInstance("1g.10gb", 7, 1, 0, 0)
    entry = dataclasses.replace(with_device("b", "1g.10gb@6"), id="b")
    entry = dataclasses.replace(entry, shares=(dataclasses.replace(entry.shares[0], mig=made),))
    with pytest.raises(errors.LedgerError, match=r"has no place for 1g.10gb@7, the MIG device of default/b"):
        ledger.reserve(there, entry)


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        (
            {"request": "0.1", "group": "red", "group_size": "2"},
            'gpushare.io/isolation "mig" cannot be combined with gpushare.io/group, as MIG devices cannot exchange '
            "data: remove one of them",
        ),
        (
            {"request.main": "0.1", "request.side": "0.1"},
            'gpushare.io/isolation "mig" gives a pod one MIG device: have its containers use it together '
            "(gpushare.io/container)",
        ),
    ],
)
def test_what_a_mig_device_cannot_do_is_refused(annotations: dict[str, str], says: str) -> None:
    with pytest.raises(errors.RequestError) as refused:
        asked(**annotations)
    assert str(refused.value) == says


def test_amounts_of_a_running_pod_cannot_change() -> None:
    there = added(node(), "a", asked(request="0.1", memory="4Gi"))
    (entry,) = there.allocations
    assert resizing.asked(asked(request="0.1", memory="4Gi"), entry, there) == entry.shares
    with pytest.raises(errors.LedgerError, match=r"it has the MIG device 1g.10gb, and the amounts of such a share"):
        resizing.asked(asked(request="0.1", memory="5Gi"), entry, there)
    there = added(node(), "a", asked(request="0.5"))
    with pytest.raises(errors.LedgerError, match=r"it has the MIG device 4g.40gb, and the amounts of such a share"):
        resizing.asked(asked(request="0.5", memory="60Gi"), *there.allocations, there)


GEOMETRIES = {name: catalogue.MODELS[name] for name in ("A30-24GB", "A100-40GB", "H100-80GB")}


def fresh(model: str) -> Gpu:
    gib = int(model.rpartition("-")[2].removesuffix("GB"))
    geometry = mig_shares.profiles(GEOMETRIES[model], gib * GIB)
    return Gpu("GPU-x", 0, model, gib * GIB, isolations=BOTH, mig_geometry=geometry)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(GEOMETRIES)))
def test_law_devices_never_overlap_and_the_largest_profile_stays_possible_if_it_can(
    data: st.DataObject, model: str
) -> None:
    """Random arrivals and departures; by brute force, no other place would have left a larger profile possible."""
    gpu = fresh(model)
    there = GpuNode("node-a", (gpu,))
    for step in range(data.draw(st.integers(1, 12))):
        if there.allocations and data.draw(st.booleans()):
            there = ledger.release(there, [data.draw(st.sampled_from(there.allocations)).id])
            continue
        kind = data.draw(st.sampled_from(gpu.mig_geometry))
        taken = mig_shares.instances(there.allocations)
        options = [option for start in kind.starts if (option := fitting(there, f"{kind.profile}@{start}", step))]
        made = mig_shares.place(gpu, kind, taken)
        assert (made is None) == (not options)
        if made is None:
            continue
        after = ledger.reserve(there, entry_of(made, step))
        assert largest_left(after) == max(map(largest_left, options))
        there = after
        assert ledger.violations(there) == []
    assert sum(use.request_percent for use in ledger.use(there).values()) <= 100


def entry_of(made: MigInstance, step: int) -> Allocation:
    share = builders.allocation("x", "GPU-x", request=0, memory_gib=0).shares[0]
    labels = Labels(isolation=Isolation.MIG)
    return Allocation(f"a{step}", PodRef("default", f"p{step}"), (mig_shares.on_device(share, made),), labels=labels)


def fitting(there: GpuNode, device: str, step: int) -> GpuNode | None:
    try:
        return ledger.reserve(there, entry_of(mig_shares.read_device(there.gpus[0], device), step))
    except errors.LedgerError:
        return None


def largest_left(there: GpuNode) -> int:
    """Return the position of the largest profile that still has a place, -1 if none has, by trying all of them."""
    kinds = there.gpus[0].mig_geometry
    free = (
        at
        for at, kind in enumerate(kinds)
        if any(fitting(there, f"{kind.profile}@{start}", 99) is not None for start in kind.starts)
    )
    return max(free, default=-1)


def test_share_by_percent_of_memory_is_measured_in_slices() -> None:
    """An instance has a little less than its slices' part, and `request: 0.5` must not take a whole GPU for that."""
    kinds = tuple(
        dataclasses.replace(kind, memory_bytes=kind.memory_bytes - GIB // 4) for kind in node().gpus[0].mig_geometry
    )
    gpu = dataclasses.replace(node().gpus[0], mig_geometry=kinds)
    half = mig_shares.profile_for(gpu, Share(50, 100, Memory(percent=50)))
    assert half is not None
    assert str(half.profile) == "4g.40gb"
    there = added(GpuNode("node-a", (gpu,)), "a", asked(request="0.5"))
    assert there.allocations[0].shares[0].memory_bytes == half.memory_bytes
