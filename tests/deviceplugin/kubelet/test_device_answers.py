"""Allocate for devices: its answers and refusals."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation import answer
from deviceplugin.injection import cdi_specs
from deviceplugin.kubelet import device_answers, plugin_service
from deviceplugin.mps import steps
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Mode
from gpushare.modes import device_resources
from gpushare.modes.assignment import DeviceOffer, Offered

GPU = "nvidia.com/gpu"


@dataclasses.dataclass
class InForce:
    """The settings in force."""

    offered: DeviceOffer
    closed: frozenset[str] = frozenset()
    refusal: str = ""

    def settings(self) -> NodeSettings:
        return NodeSettings()


def whole(*uuids: str) -> DeviceOffer:
    return {GPU: tuple(Offered(uuid, uuid, uuid, str(at), Mode.EXCLUSIVE) for at, uuid in enumerate(uuids))}


def shared(*uuids: str) -> DeviceOffer:
    return {
        GPU: tuple(
            Offered(f"{uuid}::{number}", uuid, uuid, str(at), Mode.MPS, 4)
            for at, uuid in enumerate(uuids)
            for number in range(4)
        )
    }


def answers(in_force: InForce, allocated_ids: list[str], *, problem: str = "") -> device_answers.DeviceAnswers:
    def described(_: NodeSettings) -> None:
        if problem:
            raise cdi_specs.SpecError(problem)

    def gave(_: str, ids: Iterable[str]) -> None:
        allocated_ids.extend(ids)

    return device_answers.DeviceAnswers(
        in_force,
        nodes=answer.DevicePaths,
        mps=lambda uuid: steps.DaemonFiles(Path("/mps"), uuid),
        memory_bytes=lambda _: 40 << 30,
        scores=dict,
        described=described,
        allocated=gave,
    )


def test_reports_allocated_ids() -> None:
    allocated_ids: list[str] = []
    response = answers(InForce(whole("GPU-a", "GPU-b")), allocated_ids).allocate(GPU, ["GPU-b"])
    assert response.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"
    assert allocated_ids == ["GPU-b"]


def test_mps_share_gets_its_daemon_and_limits() -> None:
    response = answers(InForce(shared("GPU-a")), []).allocate(GPU, ["GPU-a::0", "GPU-a::1"])
    assert response.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert {mount.host_path for mount in response.mounts} == {"/mps/GPU-a/clients", "/mps/shm"}


@pytest.mark.parametrize(
    ("in_force", "ids", "problem", "sentence"),
    [
        (InForce(whole("GPU-a")), ["GPU-z"], "", "unknown device: GPU-z"),
        (InForce(whole("GPU-a"), closed=frozenset({"GPU-a"})), ["GPU-a"], "", "GPU-a accepts no new pods"),
        (InForce(shared("GPU-a", "GPU-b")), ["GPU-a::0", "GPU-b::0"], "", "the MPS daemon of one GPU"),
        (InForce(whole("GPU-a"), refusal="containers would get no GPU"), ["GPU-a"], "", "would get no GPU"),
        (InForce(whole("GPU-a")), ["GPU-a"], "/var/run/cdi cannot be written", "/var/run/cdi cannot be written"),
    ],
)
def test_refused_requests_allocate_nothing(in_force: InForce, ids: list[str], problem: str, sentence: str) -> None:
    allocated_ids: list[str] = []
    with pytest.raises(plugin_service.AllocateRefusedError, match=sentence):
        answers(in_force, allocated_ids, problem=problem).allocate(GPU, ids)
    assert allocated_ids == []


@st.composite
def questions(draw: st.DrawFn) -> tuple[InForce, list[str], list[str], int]:
    """Draw devices of any modes under one resource, some on closed GPUs, and a kubelet's request."""
    offered: list[Offered] = []
    for index in range(draw(st.integers(1, 4))):
        gpu, mode = f"GPU-{index}", draw(st.sampled_from([Mode.EXCLUSIVE, Mode.TIME_SLICING, Mode.MPS, Mode.MIG]))
        replicas = 1 if mode is Mode.EXCLUSIVE else draw(st.integers(1 if mode is Mode.MIG else 2, 4))
        parts = [f"MIG-{index}{part}" for part in range(3)] if mode is Mode.MIG else [gpu]
        alone = replicas > 1 and draw(st.booleans())
        for number, device in enumerate(parts):
            name = f"{index}:{number}" if mode is Mode.MIG else str(index)
            offered += [
                Offered(identity, device, gpu, name, mode, replicas, alone)
                for identity in device_resources.identities(device, replicas)
            ]
    ids = [device.id for device in offered]
    available = draw(st.lists(st.sampled_from(ids), unique=True, min_size=1))
    required = draw(st.lists(st.sampled_from(available), unique=True, max_size=2))
    closed = frozenset(draw(st.lists(st.sampled_from([device.gpu for device in offered]), max_size=1)))
    size = draw(st.integers(max(1, len(required)), len(available)))
    return InForce({GPU: tuple(offered)}, closed=closed), available, required, size


def is_given(in_force: InForce, ids: Sequence[str]) -> bool:
    try:
        answers(in_force, []).allocate(GPU, ids)
    except plugin_service.AllocateRefusedError:
        return False
    return True


@pytest.mark.slow
@given(questions())
def test_allocate_accepts_every_preferred_choice(
    question: tuple[InForce, list[str], list[str], int],
) -> None:
    in_force, available, required, size = question
    try:
        chosen = answers(in_force, []).preferred(GPU, available=available, required=required, size=size)
    except plugin_service.AllocateRefusedError:
        chosen = None
    if chosen:
        assert is_given(in_force, chosen)
        assert set(required) <= set(chosen) <= set(available)
        assert len(set(chosen)) == len(chosen) == size
    elif chosen is None and len(available) <= 8:
        others = [identity for identity in available if identity not in required]
        rests = itertools.combinations(others, size - len(required))
        assert not any(is_given(in_force, [*required, *rest]) for rest in rests)
