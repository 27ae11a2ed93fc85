import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import mix, request
from gpushare.mix import Asked, Host, Mix
from gpushare.share import Memory
from tests import builders
from tests.builders import GIB
from tests.gpushare.laws import strategies


def admitted(times: int, known: Mix | None = None, **annotations: str) -> Mix:
    found = known or Mix()
    for _ in range(times):
        found = found.admit(request.parse(builders.pod(**annotations)))
    return found


def test_before_anything_was_admitted_the_default_mix_speaks() -> None:
    assert {asked.request_percent for asked in Mix().classes} == {10, 25, 50, 100}


def test_a_few_admissions_do_not_overrule_the_default_mix() -> None:
    assert admitted(mix.ENOUGH_ADMISSIONS - 1, request="0.3").classes == Mix().classes
    assert {asked.request_percent for asked in admitted(mix.ENOUGH_ADMISSIONS, request="0.3").classes} == {30}


def test_an_admission_makes_a_new_mix_and_leaves_the_old() -> None:
    old = admitted(60, request="0.3")
    admitted(60, old, request="0.7")
    assert {asked.request_percent for asked in old.classes} == {30}


def test_what_was_admitted_a_half_life_ago_counts_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "HALF_LIFE_ADMISSIONS", 100)
    found = admitted(1, admitted(100, admitted(1, request="0.3"), request="0.5"), request="0.7")
    weights = {asked.request_percent: weight for asked, weight in found.classes.items()}
    assert weights[30] / weights[70] == pytest.approx(0.5, rel=0.02)


def test_long_use_keeps_numbers_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "HALF_LIFE_ADMISSIONS", 2)
    found = admitted(500, request="0.3")
    assert found.unit < 2e9
    assert all(weight < 1e10 for weight in found.weights.values())


def test_rare_classes_are_forgotten_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "MOST_CLASSES", 3)
    found = admitted(60, request="0.3")
    for percent in range(1, 20):
        found = admitted(1, found, request=f"{percent}%")
    assert len(found.weights) == 3
    assert 30 in {asked.request_percent for asked in found.weights}


def test_each_demand_of_a_pod_counts_and_they_share_the_host() -> None:
    manifest = builders.pod(containers=("a", "b"), **{"request.a": "0.6", "gpus.b": "2"})
    found = list(mix.classes_of(request.parse(manifest), Host(8000, 64 * GIB)))
    assert [(one.gpus, one.request_percent, one.host) for one in found] == [
        (1, 60, Host(4000, 32 * GIB)),
        (2, 100, Host(4000, 32 * GIB)),
    ]


def test_the_size_is_the_larger_of_compute_and_memory() -> None:
    assert Asked(2, 25, Memory(bytes=40 * GIB)).size_on(80 * GIB) == 1.0
    assert Asked(1, 75, Memory(bytes=40 * GIB)).size_on(80 * GIB) == 0.75


def test_typical_requests_are_parts_of_the_card_at_hand() -> None:
    found = admitted(60, memory="12Gi").typical(24 * GIB)
    assert [(one.compute, one.memory, one.weight) for one in found] == [(0.0, 0.5, 1.0)]


@given(st.lists(strategies.requests(), max_size=80))
def test_typical_weights_add_up_to_one(requests: list[request.Request]) -> None:
    found = Mix()
    for one in requests:
        found = found.admit(one)
    typical = found.typical(80 * GIB)
    assert sum(one.weight for one in typical) == pytest.approx(1.0)
    assert all(0 <= one.compute <= 1 and 0 <= one.memory <= 1 for one in typical)
