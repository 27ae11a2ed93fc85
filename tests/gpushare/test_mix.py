import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import mix, request
from gpushare.allocation import Isolation, Memory
from gpushare.mix import Host, Mix, RequestClass
from gpushare.request import Constraints, Request
from tests import builders
from tests.builders import GIB
from tests.gpushare.laws import strategies


def mix_of(times: int, **annotations: str) -> Mix:
    return builders.mix([request.parse(builders.pod(**annotations))] * times)


def test_empty_mix_uses_the_default() -> None:
    assert {asked.request_percent for asked in Mix().classes} == {10, 25, 50, 100}


def test_few_pods_do_not_replace_the_default_mix() -> None:
    assert mix_of(mix.ENOUGH_PODS - 1, request="0.3").classes == Mix().classes
    assert {asked.request_percent for asked in mix_of(mix.ENOUGH_PODS, request="0.3").classes} == {30}


def test_ignorance_falls_with_the_number_of_pods() -> None:
    known = [mix_of(pods, request="0.3").ignorance for pods in (0, mix.FEW_PODS, 2 * mix.FEW_PODS, 1000)]
    assert known[0] == known[1] == 1.0
    assert known[1] > known[2] > known[3] > 0


def test_demand_is_unknown_until_pods_have_requested_a_tenth_of_a_large_cluster() -> None:
    def unknown(pods: int, gpus: int) -> float:
        return dataclasses.replace(mix_of(pods, request="0.5"), gpus=gpus, largest=8).unknown_gpus

    assert [unknown(pods, 1000) for pods in (10, 100, 200)] == [84, 50, 0]
    assert unknown(10, 100) == unknown(0, 1000) == 0
    known = [dataclasses.replace(mix_of(pods, request="0.5"), gpus=1000, largest=8) for pods in (20, 100, 200)]
    assert [seen.ignorance for seen in known] == pytest.approx([0.25, 0.05, 0.0025])


def shared(isolation: str) -> Request:
    return request.parse(builders.pod(request="0.1", isolation=isolation))


WHOLE, EIGHT = (RequestClass(gpus, 100, Memory(percent=100)) for gpus in (1, 8))


def expected(seen: Mix, largest: int = 8) -> Mapping[RequestClass, float]:
    return dataclasses.replace(seen, gpus=800, largest=largest).expecting()


@pytest.mark.parametrize("pods", [60, 6000])
def test_whole_gpus_are_expected_while_no_pod_requests_any(pods: int) -> None:
    weights = expected(mix_of(pods, request="0.1"))
    assert (weights[WHOLE], weights[EIGHT], sum(weights.values())) == (40, 2, pods + 42)


def test_only_single_gpus_are_expected_where_no_node_has_several() -> None:
    assert expected(mix_of(60, request="0.1"), largest=1).keys() == {WHOLE, *mix_of(60, request="0.1").weights}


def test_whole_gpus_that_the_pods_request_are_not_expected_on_top() -> None:
    assert expected(mix_of(60, request="1"), largest=1) == {WHOLE: 60}
    assert expected(mix_of(60, request="1")) == {WHOLE: 60, EIGHT: 2}
    assert expected(mix_of(60, gpus="2")) == {RequestClass(2, 100, Memory(percent=100)): 60}


def test_expected_gpus_have_the_isolation_of_most_single_gpus_and_sets_have_the_arbiters() -> None:
    weights = expected(builders.mix([*[shared("mps")] * 40, *[shared("arbiter")] * 20]))
    by_mps = dataclasses.replace(WHOLE, constraints=Constraints(isolation=Isolation.MPS))
    assert (weights[by_mps], weights[EIGHT]) == (40, 2)
    assert WHOLE not in weights


def test_whole_gpus_are_expected_before_the_first_pod() -> None:
    default = {asked: mix.PRIOR * weight for asked, weight in Mix().classes.items()}
    assert Mix().expecting() == default
    assert expected(Mix()) == {**default, WHOLE: default[WHOLE] + 0.8, EIGHT: 0.04}


def test_default_mix_counts_for_less_with_every_pod() -> None:
    half = RequestClass(1, 50, Memory(percent=50))
    weights = [expected(mix_of(pods, request="1%"))[half] for pods in (1, 25)]
    assert weights == pytest.approx([0.3 * mix.PRIOR * part for part in (0.98, 0.5)])
    assert half not in expected(mix_of(mix.ENOUGH_PODS, request="1%"))


def test_rarest_classes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "MAX_CLASSES", 3)
    often = [request.parse(builders.pod(request="0.3"))] * 60
    kept_mix = builders.mix([*often, *(request.parse(builders.pod(request=f"{percent}%")) for percent in range(1, 20))])
    assert len(kept_mix.weights) == 3
    assert 30 in {asked.request_percent for asked in kept_mix.weights}


def test_demands_of_a_pod_split_its_cpu_and_memory() -> None:
    manifest = builders.pod(containers=("a", "b"), **{"request.a": "0.6", "gpus.b": "2"})
    classes = list(mix.classes_of(request.parse(manifest), Host(8000, 64 * GIB)))
    assert [(shape.gpus, shape.request_percent, shape.host) for shape in classes] == [
        (1, 60, Host(4000, 32 * GIB)),
        (2, 100, Host(4000, 32 * GIB)),
    ]


def test_size_is_the_larger_of_compute_and_memory() -> None:
    assert RequestClass(2, 25, Memory(bytes=40 * GIB)).size_on(80 * GIB) == 1.0
    assert RequestClass(1, 75, Memory(bytes=40 * GIB)).size_on(80 * GIB) == 0.75


def test_typical_requests_are_parts_of_the_given_gpu() -> None:
    requests = mix_of(60, memory="12Gi").typical(24 * GIB)
    assert [(entry.compute, entry.memory, entry.weight) for entry in requests] == [(0.0, 0.5, 1.0)]


@pytest.mark.slow
@given(st.lists(strategies.requests(), max_size=80))
def test_typical_weights_add_up_to_one(requests: list[request.Request]) -> None:
    typical = builders.mix(requests).typical(80 * GIB)
    assert sum(entry.weight for entry in typical) == pytest.approx(1.0)
    assert all(0 <= entry.compute <= 1 and 0 <= entry.memory <= 1 for entry in typical)
