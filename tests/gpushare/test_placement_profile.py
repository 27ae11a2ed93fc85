"""The published profile survives a round trip with any mix, and an invalid one is reported."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import errors
from gpushare.allocation import Memory
from gpushare.mix import Host, Mix, RequestClass
from gpushare.placement import NodeView
from gpushare.placement.fleet import Fleet
from gpushare.placement_profile import MAX_BYTES, PlacementProfile
from gpushare.policies import POLICIES
from gpushare.request import Constraints
from tests import builders

COUNTS = st.integers(0, 2**45)
CLASSES = st.builds(
    RequestClass,
    gpus=st.integers(1, 16),
    request_percent=st.integers(0, 100),
    memory=st.one_of(st.builds(Memory, bytes=COUNTS), st.builds(Memory, percent=st.integers(0, 100))),
    host=st.builds(Host, cpu_milli=COUNTS, memory_bytes=COUNTS),
    constraints=st.builds(
        Constraints,
        models=st.lists(st.text(max_size=20), max_size=3).map(tuple),
        min_memory_bytes=COUNTS,
        min_compute_capability=st.tuples(st.integers(0, 12), st.integers(0, 9)),
    ),
)
WEIGHTS = st.dictionaries(CLASSES, st.integers(1, 10**6).map(float), max_size=8)
HOSTS = st.builds(Host, cpu_milli=COUNTS, memory_bytes=COUNTS)
MIXES = st.builds(Mix, WEIGHTS, pods=COUNTS, gpus=st.integers(1, 2**45), largest=st.integers(1, 16), others=HOSTS)
ONE = Mix({RequestClass(1, 5, Memory(bytes=1)): 1.0}, pods=1)


@pytest.mark.slow
@given(st.sampled_from(sorted(POLICIES)), MIXES)
def test_profile_survives_a_round_trip(policy: str, mix: Mix) -> None:
    profile = PlacementProfile(policy, mix)
    assert PlacementProfile.read(profile.data()) == profile


def test_long_mix_keeps_its_most_common_classes() -> None:
    asked = RequestClass(1, 100, Memory(percent=100))
    long = [
        dataclasses.replace(asked, constraints=Constraints(models=(f"{number:03}" + "m" * 4000,)))
        for number in range(500)
    ]
    profile = PlacementProfile(mix=Mix({kind: float(number + 1) for number, kind in enumerate(long)}, 9000, 800, 8))
    text = profile.data()["mix"]
    assert len(text) <= MAX_BYTES
    kept = PlacementProfile.read(profile.data()).mix
    assert kept.pods == 9000
    assert long[-1] in kept.weights
    assert long[0] not in kept.weights


def test_mix_that_is_cut_makes_cpu_and_memory_as_scarce_as_before() -> None:
    classes = {RequestClass(1, 1, Memory(bytes=number), Host(1000, 2**30)): 2.0 for number in range(3000)}
    mix = Mix(classes, pods=6000, gpus=100, largest=8, others=Host(1_200_000, 2**40))
    kept = PlacementProfile.read(PlacementProfile(mix=mix).data()).mix
    assert len(kept.weights) < len(mix.weights)
    assert kept.host_scale == pytest.approx(mix.host_scale)


def test_mix_without_the_gpus_of_its_cluster_counts_for_nothing() -> None:
    """An earlier release wrote none. Replicas that know different nodes would add different numbers of GPUs."""
    small, large = Fleet(), Fleet()
    nodes = [builders.node(f"node-{number}", gpus=8) for number in range(40)]
    stored = Mix({RequestClass(1, 10, Memory(percent=10)): 60.0}, pods=60)
    small.update(NodeView.from_node(nodes[0]))
    for fleet in (small, large):
        fleet.learn(PlacementProfile.read(PlacementProfile(mix=stored).data()).mix)
        for node in nodes:
            fleet.update(NodeView.from_node(node))
    large.learn(PlacementProfile.read(PlacementProfile(mix=stored).data()).mix)
    assert small.mix.expecting() == large.mix.expecting() == dataclasses.replace(Mix(), gpus=320, largest=8).expecting()


def test_empty_config_map_gives_the_defaults() -> None:
    assert PlacementProfile.read({}) == PlacementProfile()


@pytest.mark.parametrize(
    "data",
    [
        {"policy": "fastest"},
        {"mix": "{"},
        {"mix": "[]"},
        {"mix": "[" * 100_000},
        {"mix": '{"pods": 9, "classes": [{}]}'},
        *({"mix": f'{{"pods": {pods}, "classes": []}}'} for pods in ("Infinity", "1e999", "NaN", "-1", "2.5", f"-1{'0' * 400}")),
        {"mix": '{"pods": 60, "gpus": 8, "classes": []}'},  # without the GPUs of the largest node
        {"mix": '{"pods": 9, "classes": [{"gpus": "1"}]}'},
        {"mix": PlacementProfile(mix=ONE).data()["mix"].replace("1.0", "-1.0")},
        {"mix": PlacementProfile(mix=ONE).data()["mix"].replace("1.0", "Infinity")},
        {"mix": PlacementProfile(mix=ONE).data()["mix"].replace('"bytes": 1', '"bytes": "1"')},
        {"mix": PlacementProfile(mix=ONE).data()["mix"].replace('"request_percent": 5', '"request_percent": -5')},
    ],
)  # fmt: skip
def test_invalid_profile_is_an_error(data: dict[str, str]) -> None:
    with pytest.raises(errors.CodecError, match=r"invalid|unknown"):
        PlacementProfile.read(data)
