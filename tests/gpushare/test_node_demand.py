"""The packing of waiting pods onto imaginary nodes: never too much, nothing without need, first come first served."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import request as requests
from gpushare.allocation import Isolation
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import GpuKind, Unmet, WaitingPod
from tests import builders

A100 = GpuKind.of(builders.gpu(), "A100", cpu_milli=8000, memory_bytes=64 * builders.GIB)
L4 = GpuKind.named("NVIDIA-L4", 24 * builders.GIB)


def waiting(
    name: str,
    *kinds: GpuKind,
    cpu: str = "",
    selection: str = "{}",
    containers: tuple[str, ...] = ("main",),
    **asks: Any,
) -> WaitingPod:
    made = builders.pod(name, uid=name, containers=containers, **asks)
    if cpu:
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    request = requests.parse(made)
    return WaitingPod(name, made, request, selection, node_demand.usable(kinds, request))


ASKS = st.fixed_dictionaries(
    {"request": st.sampled_from(["0.1", "0.25", "0.5", "0.7", "1"])},
    optional={
        "memory": st.sampled_from(["1Gi", "20Gi", "70Gi", "200Gi"]),
        "gpus": st.sampled_from(["1", "2", "4"]),
        "model": st.sampled_from(["A100", "L4", "H100"]),
        "exclusion": st.sampled_from(["a", "b"]),
        "anti_affinity": st.just("x"),
        "isolation": st.sampled_from(["arbiter", "mps", "auto"]),
    },
).filter(lambda asks: not (asks.get("isolation") == "mps" and asks.get("gpus", "1") != "1"))
PODS = st.lists(
    st.tuples(ASKS, st.sampled_from(["", "1", "6", "30"]), st.sampled_from(["{}", '{"a": 1}'])), max_size=25
)
KINDS = st.sampled_from([(), (A100,), (L4,), (L4, A100)])


@given(PODS, KINDS, st.integers(1, 12))
def test_law_never_asks_for_more_than_each_pod_alone_needs_or_than_the_bound(
    pods: list[tuple[dict[str, Any], str, str]], kinds: tuple[GpuKind, ...], bound: int
) -> None:
    asked = [
        waiting(f"p{number}", *kinds, cpu=cpu, selection=selection, **asks)
        for number, (asks, cpu, selection) in enumerate(pods)
    ]
    packing = node_demand.pack(asked, max_gpus=bound)
    packed = {uid: demand for demand in packing.demands for uid in demand.uids}
    assert packing.gpus <= bound
    # Every pod has one answer, and a demand never spans what its pods do not share.
    assert packed.keys() | packing.unmet.keys() == {pod.uid for pod in asked}
    assert not packed.keys() & packing.unmet.keys()
    assert sum(len(demand.uids) for demand in packing.demands) == len(packed)
    alone = {pod.uid: node_demand.needed_gpus(pod) for pod in asked}
    by_uid = {pod.uid: pod for pod in asked}
    for demand in packing.demands:
        needed = [found[1] for uid in demand.uids if (found := alone[uid]) is not None]
        assert demand.gpus <= sum(needed)
        assert demand.gpus == needed[0]
        assert {by_uid[uid].selection for uid in demand.uids} == {demand.selection}
    for uid, why in packing.unmet.items():
        found = alone[uid]
        assert (why is Unmet.NO_KIND) == (found is None)
        assert found is None or packing.gpus + found[1] > bound


@given(PODS, KINDS)
def test_law_nothing_is_asked_for_nobody(
    pods: list[tuple[dict[str, Any], str, str]], kinds: tuple[GpuKind, ...]
) -> None:
    assert node_demand.pack([], max_gpus=8).demands == ()
    asked = [waiting(f"p{number}", *kinds, cpu=cpu, **asks) for number, (asks, cpu, _) in enumerate(pods)]
    demands = node_demand.pack(asked, max_gpus=1000).demands
    assert all(demand.uids for demand in demands)


@pytest.mark.parametrize(
    ("pods", "gpus"),
    [
        ([{"request": "0.25"}] * 9, [1, 1, 1]),
        ([{"request": "0.6"}, {"request": "0.6"}, {"request": "0.4"}], [1, 1]),
        ([{"gpus": "4"}, {"request": "0.5", "gpus": "2"}, {"request": "0.5"}], [4, 2]),
        ([{"memory": "40Gi"}, {"memory": "41Gi"}, {"memory": "39Gi"}], [1, 1]),
        ([{"request": "0.3", "exclusion": "a"}, {"request": "0.3"}], [1, 1]),
        ([{"request": "0.3", "isolation": "mps"}], []),  # this kind takes no such shares
    ],
)
def test_pods_are_packed_first_fit(pods: list[dict[str, Any]], gpus: list[int]) -> None:
    asked = [waiting(f"p{number}", A100, **asks) for number, asks in enumerate(pods)]
    assert [demand.gpus for demand in node_demand.pack(asked, max_gpus=64).demands] == gpus


def test_containers_with_shares_of_their_own_share_a_gpu_if_they_can() -> None:
    both: dict[str, Any] = {"request.a": "0.5", "request.b": "0.5"}
    (demand,) = node_demand.pack([waiting("p", A100, containers=("a", "b"), **both)], max_gpus=8).demands
    assert demand.gpus == 1
    both["request.b"] = "0.6"
    (demand,) = node_demand.pack([waiting("p", A100, containers=("a", "b"), **both)], max_gpus=8).demands
    assert demand.gpus == 2


def test_cpu_counts_on_nodes_that_are_known_and_never_exceeds_them() -> None:
    asked = [waiting(f"p{number}", A100, cpu="3", request="0.1") for number in range(5)]
    demands = node_demand.pack(asked, max_gpus=8).demands
    assert [demand.cpu_milli for demand in demands] == [6000, 6000, 3000]
    asked = [waiting(f"p{number}", L4, cpu="3", request="0.1") for number in range(5)]
    (demand,) = node_demand.pack(asked, max_gpus=8).demands
    assert demand.cpu_milli == 3000  # the size of the node is unknown, so a sum could be too much for any
    (demand,) = node_demand.pack([waiting("p", A100, cpu="30", request="0.1")], max_gpus=8).demands
    assert demand.cpu_milli == 30000


def test_a_pod_gets_the_first_kind_that_fits_it() -> None:
    asked = [waiting("small", L4, A100, memory="20Gi"), waiting("large", L4, A100, memory="30Gi")]
    assert [demand.product for demand in node_demand.pack(asked, max_gpus=8).demands] == ["NVIDIA-L4", "A100"]
    packing = node_demand.pack([waiting("other", L4, model="H100", request="1")], max_gpus=8)
    assert packing.unmet == {"other": Unmet.NO_KIND}


def test_without_any_known_gpu_each_pod_with_bytes_gets_its_own() -> None:
    asked = [waiting(f"p{number}", memory="8Gi") for number in range(2)]
    asked += [waiting(f"q{number}", request="0.5") for number in range(2)]
    assert [demand.uids for demand in node_demand.pack(asked, max_gpus=8).demands] == [("p0",), ("p1",), ("q0", "q1")]
    assert node_demand.pack([waiting("named", model="L4", request="1")], max_gpus=8).unmet == {"named": Unmet.NO_KIND}


def test_a_kind_is_as_if_new() -> None:
    used = builders.gpu(healthy=False, cordoned=True, isolations=(Isolation.MPS,))
    kind = GpuKind.of(used)
    assert kind.gpu.takes_shares
    assert kind.gpu.isolations == (Isolation.MPS,)
