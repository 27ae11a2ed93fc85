"""The parts of a GPU's setup: MPS daemons and MIG."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.modes import setup
from deviceplugin.modes.setup import SetUpError
from deviceplugin.mps.daemons import Daemons
from gpushare.gpunode import Gpu, Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu
from tests.deviceplugin import simulated
from tests.deviceplugin.modes.programs import held_devices

GPU = HardwareGpu("GPU-a", 0)
KNOWN = Gpu("GPU-a", 0, "NVIDIA A100-SXM4-40GB", 40 << 30, compute_capability=(8, 0))
SHARED = Assignment(Mode.MPS, "nvidia.com/gpu", replicas=4, alone=True)


@pytest.fixture
async def daemons(simulation: None, tmp_path: Path) -> AsyncIterator[Daemons]:
    async def exclusive(uuid: str, exclusive: bool) -> None:
        assert uuid == GPU.uuid

    made = Daemons(root=tmp_path, program=simulated.BUILD / "nvidia-cuda-mps-control", set_exclusive=exclusive)
    yield made
    await made.detach()
    for directory in tmp_path.glob("*/"):  # noqa: ASYNC240 - no other task waits
        await made.stop(directory.name)


def mps(daemons: Daemons, known: Gpu | None = KNOWN) -> setup.MpsPart:
    return setup.MpsPart(daemons, gpu_of={GPU.uuid: known}.get)


async def test_a_gpu_has_a_daemon_while_its_mode_is_mps(daemons: Daemons) -> None:
    part = mps(daemons)
    for _ in range(2):
        await part.set_up(GPU, SHARED)
        assert daemons.problem(GPU.uuid) == ""
    assert "default_device_pinned_mem_limit 0 10240M" in (daemons.files(GPU.uuid).pipe / "limits").read_text()
    for following in (dataclasses.replace(SHARED, replicas=2), Assignment(Mode.EXCLUSIVE, "nvidia.com/gpu")):
        await part.set_up(GPU, SHARED)
        await part.tear_down(GPU, SHARED, following)
        assert not daemons.files(GPU.uuid).pid_file.exists()


async def test_other_modes_have_no_daemon(daemons: Daemons) -> None:
    await mps(daemons).set_up(GPU, Assignment(Mode.TIME_SLICING, "nvidia.com/gpu", replicas=4))
    assert not daemons.files(GPU.uuid).directory.exists()


@pytest.mark.parametrize(
    ("gpu", "known", "assignment", "sentence"),
    [
        (GPU, None, SHARED, "GPU-a is gone"),
        (HardwareGpu("GPU-a", 0, mig_enabled=True), KNOWN, SHARED, "GPU-a is in MIG mode"),
        (
            GPU,
            KNOWN,
            Assignment(Mode.MPS, "nvidia.com/gpu", replicas=49),
            "maximum allowed replicas exceeded: 49 > 48",
        ),
    ],
)
async def test_a_gpu_that_mps_cannot_share_is_refused(
    daemons: Daemons, gpu: HardwareGpu, known: Gpu | None, assignment: Assignment, sentence: str
) -> None:
    with pytest.raises(SetUpError, match=sentence):
        await mps(daemons, known).set_up(gpu, assignment)
    assert not daemons.files(GPU.uuid).directory.exists()


@pytest.mark.slow
def test_a_mig_device_of_a_pod_is_kept_even_if_it_is_idle(gpus: Path) -> None:
    done = simulated.run(gpus, held_devices.cuts_beside_a_held_device)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused ")
    assert done.stdout.count("refused") == 1


async def test_a_command_ends_with_the_task_that_runs_it(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    os.mkfifo(started)
    task = asyncio.create_task(setup.run_command("sh", "-c", f"echo $$ >{started}; exec sleep 60"))
    pid = int(await asyncio.to_thread(started.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_command_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "COMMAND_SECONDS", 0.0)
    with pytest.raises(SetUpError, match="sleep 60 did not end within"):
        await setup.run_command("sleep", "60")
