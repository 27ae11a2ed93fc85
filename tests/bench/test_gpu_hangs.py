"""Programs, daemons and drivers that hang or fail do not hold up a run on a GPU, and cost it none of its results."""

from __future__ import annotations

import ctypes
import datetime
import os
import select
import subprocess
from pathlib import Path

import pytest

from bench.gpu import __main__ as bench
from bench.gpu import machine, modes, tenants
from bench.gpu.report import Report, narrow
from bench.launches.node import Tenant
from tests import programs
from tests.bench.programs import hanging_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each program gets a mount namespace of its own"),
]


@pytest.mark.parametrize("in_thread", [False, True], ids=["the loop hangs in a driver's call", "a thread never ends"])
def test_a_run_that_hangs_ends_with_its_results(tmp_path: Path, in_thread: bool) -> None:
    """It kills its programs, writes and prints the page, and exits, although asyncio would wait for its threads."""
    command = programs.command(hanging_run.hangs, str(tmp_path / "out"), str(tmp_path / "pid"), in_thread=in_thread)
    ended = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 3, ended.stderr
    (page,) = (tmp_path / "out").glob("*.md")
    assert "| one | 1.0 |" in page.read_text()
    assert narrow(page.read_text()) in ended.stdout
    assert _ends(int((tmp_path / "pid").read_text()))


def _ends(pid: int) -> bool:
    """Whether a process ends, or has ended, within a bounded time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 20)[0])
    finally:
        os.close(process)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of programs on a simulated GPU, whose NVML this process does not load: others look for a real one."""
    return machine.simulated_environment(tmp_path)


def test_an_mps_daemon_ends_with_its_mode(environment: dict[str, str], tmp_path: Path) -> None:
    with modes.mps(environment, tmp_path / "mps") as made:
        assert made
        pid = int((tmp_path / "mps" / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
    assert _ends(pid)


def test_an_mps_daemon_that_does_not_answer_is_no_mode(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "_ANSWER_SECONDS", 0.2)
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    with modes.mps({**environment, "PATH": path}, tmp_path / "mps") as made:
        assert not made


@pytest.fixture
def broken(environment: dict[str, str]) -> machine.Machine:
    """A machine whose programs find no GPU."""
    tenants.build()
    return machine.Machine(
        model="NVIDIA H100 80GB HBM3",
        uuid="GPU-0",
        memory_bytes=80 << 30,
        driver="580.159.04",
        cuda="13.0",
        simulated=True,
        environment={**environment, "CUDA_VISIBLE_DEVICES": "GPU-0"},
        _nvml=ctypes.CDLL(None),
        _handle=ctypes.c_void_p(),
    )


async def test_the_error_of_a_program_that_fails_is_in_the_report(broken: machine.Machine, tmp_path: Path) -> None:
    async with tenants.opened(broken, tmp_path, 90_000) as gpu:
        with pytest.raises(tenants.ProgramError, match="cuInit: 100"):
            await gpu.compete(modes.NATIVE, [Tenant(50, 100, "sync", 1000)], 0.1, 100)


def test_a_gpu_that_cannot_be_calibrated_is_measured_all_the_same(broken: machine.Machine, tmp_path: Path) -> None:
    report = Report({"gpu": "GPU"}, datetime.date(2026, 1, 2))
    run = bench.Run(broken, tmp_path, tmp_path, report, 0.0, (), None)
    assert bench.calibrate(run) == bench.SPIN_LOOPS
    assert report.failed == ["calibrate"]
    assert "cuInit: 100" in report.page()


def test_the_link_of_a_run_that_was_killed_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sandboxes refuse mount namespaces, programs find the arbiter by a link."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    monkeypatch.setattr(tenants, "has_namespaces", lambda: False)
    with tenants.reachable(tmp_path, str(link)):
        assert link.resolve() == tmp_path
    assert not link.is_symlink()
