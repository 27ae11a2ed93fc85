"""GetPreferredAllocation: the requested number of the offered devices, and the best ones."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation import aligned, preference
from deviceplugin.hardware import nvml_topology
from gpushare.gpunode import Gpu, Mode
from gpushare.modes import device_resources
from gpushare.modes.assignment import Offered
from tests import builders


def shares(gpus: dict[str, int]) -> dict[str, Offered]:
    devices = [
        Offered(identity, gpu, gpu, str(index), Mode.TIME_SLICING, replicas)
        for index, (gpu, replicas) in enumerate(gpus.items())
        for identity in device_resources.identities(gpu, replicas)
    ]
    return {device.id: device for device in devices}


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, Offered], list[str], list[str], int]:
    devices = shares({f"GPU-{n}": draw(st.integers(1, 4)) for n in range(draw(st.integers(1, 4)))})
    available = draw(st.lists(st.sampled_from(sorted(devices)), unique=True, min_size=1))
    required = draw(st.lists(st.sampled_from(available), unique=True))
    return devices, available, required, draw(st.integers(len(required), len(available)))


@pytest.mark.slow
@given(questions(), st.sampled_from(["distributed", "packed", ""]))
def test_prefers_the_requested_number_of_available_devices(
    question: tuple[dict[str, Offered], list[str], list[str], int], policy: str
) -> None:
    devices, available, required, size = question
    scores = {(f"GPU-{a}", f"GPU-{b}"): a * b for a in range(4) for b in range(a)}

    def ask(order: list[str]) -> tuple[str, ...]:
        return preference.prefer(devices, available=order, required=required, size=size, policy=policy, scores=scores)

    chosen = ask(available)
    if chosen or size == 0:
        assert len(chosen) == len(set(chosen)) == size
        assert set(required) <= set(chosen) <= set(available)
    else:  # no full group contains all required GPUs; the kubelet then chooses by itself
        assert preference.algorithm(list(devices.values()), available) is preference.Algorithm.ALIGNED
    assert set(ask(sorted(available, reverse=True))) == set(chosen)


@pytest.mark.slow
@given(questions())
def test_distributed_balances_the_allocated_ids(
    question: tuple[dict[str, Offered], list[str], list[str], int],
) -> None:
    devices, available, required, size = question
    gpus = {identity: device.gpu for identity, device in devices.items()}
    chosen = preference.prefer_greedily(gpus, available=available, required=required, size=size, policy="distributed")
    left = set(available) - set(chosen)
    allocated = {gpu: sum(owner == gpu for owner in gpus.values()) for gpu in gpus.values()}
    for identity in left:
        allocated[gpus[identity]] -= 1
    for identity in set(chosen) - set(required):
        for other in left:
            assert allocated[gpus[identity]] - 1 <= allocated[gpus[other]]


def test_too_few_free_devices_are_an_error_with_both_numbers() -> None:
    with pytest.raises(preference.AllocationError, match="2 more are needed, and 1 are free"):
        preference.prefer_greedily(
            {"a": "A", "b": "B"}, available=["a", "b"], required=["a"], size=3, policy="distributed"
        )


def test_more_required_than_requested_devices_are_an_error() -> None:
    with pytest.raises(preference.AllocationError, match="2 devices must be in an allocation of 1"):
        preference.prefer_greedily(
            {"a": "A", "b": "B"}, available=["a", "b"], required=["a", "b"], size=1, policy="distributed"
        )


def test_mig_devices_count_for_their_gpu() -> None:
    devices = {
        f"MIG-{gpu}{part}": Offered(f"MIG-{gpu}{part}", f"MIG-{gpu}{part}", f"GPU-{gpu}", f"{gpu}:{part}", Mode.MIG)
        for gpu in (0, 1)
        for part in (0, 1)
    }
    for policy, expected in (("distributed", {"GPU-0", "GPU-1"}), ("packed", {"GPU-0"})):
        chosen = preference.prefer(devices, available=list(devices), required=[], size=2, policy=policy, scores={})
        assert {devices[identity].gpu for identity in chosen} == expected


def slices(policy: str, pods: int) -> list[str]:
    """Return the MIG devices that so many pods get one after the other. Two GPUs have three MIG devices with four
    slices each.
    """
    devices = {
        device.id: device
        for gpu in (0, 1)
        for part in (0, 1, 2)
        for name in [f"MIG-{gpu}{part}"]
        for device in [
            Offered(identity, name, f"GPU-{gpu}", f"{gpu}:{part}", Mode.MIG, 4)
            for identity in device_resources.identities(name, 4)
        ]
    }
    free = list(devices)
    for _ in range(pods):
        (identity,) = preference.prefer(devices, available=free, required=[], size=1, policy=policy, scores={})
        free.remove(identity)
    return sorted(devices[identity].device for identity in devices.keys() - set(free))


def test_slices_are_balanced_by_mig_device_then_by_gpu() -> None:
    assert {name[:5] for name in slices("distributed", 2)} == {"MIG-0", "MIG-1"}
    assert slices("distributed", 6) == ["MIG-00", "MIG-01", "MIG-02", "MIG-10", "MIG-11", "MIG-12"]
    assert slices("packed", 6) == ["MIG-00"] * 4 + ["MIG-01"] * 2


def test_devices_shared_by_mps_come_from_one_gpu() -> None:
    devices = {
        identity: Offered(identity, gpu, gpu, str(index), Mode.MPS, 4)
        for index, gpu in enumerate(("GPU-0", "GPU-1"))
        for identity in device_resources.identities(gpu, 4)
    }

    def ask(size: int, *taken: str, required: list[str] | None = None) -> tuple[str, ...]:
        free = [identity for identity in devices if identity not in taken]
        return preference.prefer(
            devices, available=free, required=required or [], size=size, policy="distributed", scores={}
        )

    assert {devices[identity].gpu for identity in ask(2)} == {"GPU-0"}
    assert {devices[identity].gpu for identity in ask(4, "GPU-0::0")} == {"GPU-1"}, "only this GPU has enough"
    assert {devices[identity].gpu for identity in ask(3, "GPU-0::0")} == {"GPU-1"}, "this GPU has fewer allocated"
    assert {devices[identity].gpu for identity in ask(3, "GPU-0::0", required=["GPU-0::1"])} == {"GPU-0"}
    with pytest.raises(preference.AllocationError, match="no GPU has 4 of its devices free: ask for fewer"):
        ask(4, "GPU-0::0", "GPU-1::0")


Matrix = dict[tuple[int, int], int]


def splits(gpus: tuple[int | None, ...], size: int) -> list[list[tuple[int | None, ...]]]:
    """Return every split into groups of `size`, in the order of their members. None is an empty place."""
    if len(gpus) == size:
        return [[gpus]]
    partitions = []
    for places in itertools.combinations(range(1, len(gpus)), size - 1):
        group = (gpus[0], *(gpus[place] for place in places))
        rest = tuple(gpu for place, gpu in enumerate(gpus) if place not in (0, *places))
        partitions += [[group, *others] for others in splits(rest, size)]
    return partitions


def by_hand(available: list[int], required: set[int], size: int, scores: Matrix) -> tuple[int, ...]:
    def score(group: tuple[int | None, ...]) -> int:
        return sum(
            scores.get((min(a, b), max(a, b)), 0)
            for a, b in itertools.combinations([g for g in group if g is not None], 2)
        )

    def is_answer(group: tuple[int | None, ...]) -> bool:
        return None not in group and required <= set(group)

    padded = (*available, *([None] * (-len(available) % size)))
    candidates = [split for split in splits(padded, size) if any(map(is_answer, split))]
    if not candidates:
        return ()
    best = max(candidates, key=lambda split: sum(map(score, split)))
    return max(filter(is_answer, best), key=score)  # type: ignore[return-value]


@pytest.mark.slow
@given(st.data())
def test_aligned_matches_an_exhaustive_search(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    pairs = itertools.combinations(range(count), 2)
    scores = {pair: data.draw(st.sampled_from([0, 10, 50, 100])) for pair in pairs}
    available = data.draw(st.permutations(range(count)))
    required = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=2))
    size = data.draw(st.integers(max(1, len(required)), count))
    chosen = aligned.prefer(available, required=required, size=size, scores=scores)
    assert chosen == by_hand(available, set(required), size, scores)


@pytest.mark.slow
@pytest.mark.parametrize("size", range(1, 17))
def test_sixteen_gpus_take_at_most_five_seconds(size: int) -> None:
    draw = random.Random(size)
    scores = {pair: draw.choice([10, 20, 50, 100, 200]) for pair in itertools.combinations(range(16), 2)}
    before = time.process_time()
    assert len(aligned.prefer(range(16), required=[], size=size, scores=scores)) == size
    assert time.process_time() - before < 5.0


def test_grows_a_group_from_more_than_sixteen_gpus() -> None:
    scores = {(20, 21): 100, (21, 22): 100, (20, 22): 100}
    assert aligned.prefer(range(32), required=[], size=3, scores=scores) == (20, 21, 22)
    assert aligned.prefer(range(32), required=[21, 5], size=3, scores=scores) == (5, 20, 21)


@pytest.mark.parametrize(
    ("available", "required", "size"), [([0, 1], [], 0), ([0, 1], [], 3), ([0, 1], [2], 1), ([0, 1], [0, 1], 1)]
)
def test_impossible_requests_have_no_answer(available: list[int], required: list[int], size: int) -> None:
    assert aligned.prefer(available, required=required, size=size, scores={}) == ()


def test_prefers_one_nvlink_group_then_one_cpu() -> None:
    gpus = [
        Gpu(f"GPU-{index}", index, "A100", 0, numa_node=numa, link_group=group)
        for index, (numa, group) in enumerate([(0, None), (0, 1), (1, 1), (1, None)])
    ]
    scores = aligned.scores_by_uuid(gpus, {})
    assert scores["GPU-1", "GPU-2"] > scores["GPU-0", "GPU-1"] > scores["GPU-0", "GPU-2"]
    devices = {gpu.uuid: Offered(gpu.uuid, gpu.uuid, gpu.uuid, str(gpu.index), Mode.EXCLUSIVE) for gpu in gpus}
    chosen = preference.prefer(devices, available=list(devices), required=[], size=2, policy="", scores=scores)
    assert chosen == ("GPU-1", "GPU-2")


def test_paths_from_the_driver_override_guesses() -> None:
    gpus = [dataclasses.replace(gpu, link_group=None) for gpu in builders.node(gpus=3).gpus]
    gpu, other, third = (gpu.uuid for gpu in gpus)
    paths = {(other, gpu): nvml_topology.NvmlPath("SingleSwitch", 2), (gpu, third): nvml_topology.NvmlPath("CrossCPU")}
    scores = aligned.scores_by_uuid(gpus, paths)
    assert scores[gpu, other] == 250
    assert scores[gpu, third] == 10
    grouped = [dataclasses.replace(gpu, link_group=0) for gpu in gpus]
    assert aligned.scores_by_uuid(grouped, paths)[gpu, third] == 110
