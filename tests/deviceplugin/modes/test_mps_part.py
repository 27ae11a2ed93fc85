"""MPS as a part of setting up a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.modes import mps_part
from deviceplugin.modes.setup import SetUpError
from deviceplugin.mps.daemons import Daemons
from gpushare.gpu import Gpu, Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu
from tests.deviceplugin import simulated

GPU = HardwareGpu("GPU-a", 0)
KNOWN = Gpu("GPU-a", 0, "NVIDIA A100-SXM4-40GB", 40 << 30, compute_capability=(8, 0))
SHARED = Assignment(Mode.MPS, "nvidia.com/gpu", replicas=4, alone=True)


@pytest.fixture
async def daemons(simulation: None, tmp_path: Path) -> AsyncIterator[Daemons]:
    async def exclusive(uuid: str, exclusive: bool) -> None:
        assert uuid == GPU.uuid

    made = Daemons(root=tmp_path, program=simulated.BUILD / "nvidia-cuda-mps-control", exclusive=exclusive)
    yield made
    await made.stop()


def mps(daemons: Daemons, known: Gpu | None = KNOWN) -> mps_part.MpsPart:
    return mps_part.MpsPart(daemons, gpu_of={GPU.uuid: known}.get)


async def test_a_gpu_has_a_daemon_while_it_is_shared_by_mps(daemons: Daemons) -> None:
    part = mps(daemons)
    for _ in range(2):
        await part.enter(GPU, SHARED)
        assert daemons.problem(GPU.uuid) == ""
    assert "default_device_pinned_mem_limit 0 10240M" in (daemons.places(GPU.uuid).pipe / "limits").read_text()
    for following in (dataclasses.replace(SHARED, replicas=2), Assignment(Mode.EXCLUSIVE, "nvidia.com/gpu")):
        await part.enter(GPU, SHARED)
        await part.leave(GPU, SHARED, following)
        assert not daemons.places(GPU.uuid).pid_file.exists()


async def test_other_modes_have_none(daemons: Daemons) -> None:
    await mps(daemons).enter(GPU, Assignment(Mode.TIME_SLICING, "nvidia.com/gpu", replicas=4))
    assert not daemons.places(GPU.uuid).directory.exists()


@pytest.mark.parametrize(
    ("gpu", "known", "assignment", "sentence"),
    [
        (GPU, None, SHARED, "GPU-a is not there any more"),
        (HardwareGpu("GPU-a", 0, mig_enabled=True), KNOWN, SHARED, "GPU-a is in MIG mode"),
        (
            GPU,
            KNOWN,
            Assignment(Mode.MPS, "nvidia.com/gpu", replicas=49),
            "maximum allowed replicas exceeded: 49 > 48",
        ),
    ],
)
async def test_what_cannot_be_shared_by_mps_is_refused(
    daemons: Daemons, gpu: HardwareGpu, known: Gpu | None, assignment: Assignment, sentence: str
) -> None:
    with pytest.raises(SetUpError, match=sentence):
        await mps(daemons, known).enter(gpu, assignment)
    assert not daemons.places(GPU.uuid).directory.exists()
