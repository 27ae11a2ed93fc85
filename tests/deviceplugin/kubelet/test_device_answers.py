"""What Allocate answers for devices, and when it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

from deviceplugin.allocation import answer
from deviceplugin.cdi import specs
from deviceplugin.kubelet import device_answers, plugin_service
from deviceplugin.mps import places
from gpushare.config.node_settings import NodeSettings
from gpushare.gpu import Mode
from gpushare.modes.offering import Offer, Offered

GPU = "nvidia.com/gpu"


@dataclasses.dataclass
class InForce:
    """What is in force."""

    offered: Offer
    closed: frozenset[str] = frozenset()
    refusal: str = ""

    def settings(self) -> NodeSettings:
        return NodeSettings()


def whole(*uuids: str) -> Offer:
    return {GPU: tuple(Offered(uuid, uuid, uuid, str(at), Mode.EXCLUSIVE) for at, uuid in enumerate(uuids))}


def shared(*uuids: str) -> Offer:
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
            raise specs.SpecError(problem)

    def gave(_: str, ids: Iterable[str]) -> None:
        allocated_ids.extend(ids)

    return device_answers.DeviceAnswers(
        in_force,
        nodes=answer.Nodes,
        mps=lambda uuid: places.Places(Path("/mps"), uuid),
        memory_bytes=lambda _: 40 << 30,
        scores=dict,
        described=described,
        allocated=gave,
    )


def test_what_was_given_is_remembered() -> None:
    allocated_ids: list[str] = []
    response = answers(InForce(whole("GPU-a", "GPU-b")), allocated_ids).allocate(GPU, ["GPU-b"])
    assert response.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"
    assert allocated_ids == ["GPU-b"]


def test_a_share_by_mps_has_its_daemon_and_limits_of_its_size() -> None:
    response = answers(InForce(shared("GPU-a")), []).allocate(GPU, ["GPU-a::0", "GPU-a::1"])
    assert response.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert {mount.host_path for mount in response.mounts} == {"/mps/GPU-a/pipe", "/mps/shm"}


@pytest.mark.parametrize(
    ("in_force", "ids", "problem", "sentence"),
    [
        (InForce(whole("GPU-a")), ["GPU-z"], "", "unknown device: GPU-z"),
        (InForce(whole("GPU-a"), closed=frozenset({"GPU-a"})), ["GPU-a"], "", "GPU-a takes nothing new"),
        (InForce(shared("GPU-a", "GPU-b")), ["GPU-a::0", "GPU-b::0"], "", "the MPS daemon of one GPU"),
        (InForce(whole("GPU-a"), refusal="containers would get no GPU"), ["GPU-a"], "", "would get no GPU"),
        (InForce(whole("GPU-a")), ["GPU-a"], "/var/run/cdi cannot be written", "/var/run/cdi cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_given(
    in_force: InForce, ids: list[str], problem: str, sentence: str
) -> None:
    allocated_ids: list[str] = []
    with pytest.raises(plugin_service.AllocateRefusedError, match=sentence):
        answers(in_force, allocated_ids, problem=problem).allocate(GPU, ids)
    assert allocated_ids == []
