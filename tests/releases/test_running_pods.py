"""Programs that run while their node's agent is replaced by the next release's, and by the previous one's again."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.arbiter.test_real_leases import begin, load, percent, split
from tests.interposer.container import Container, complaints_of_the_library, finishing, lines_of_the_library
from tests.programs import command
from tests.releases.conftest import arbiter
from tests.releases.programs import running
from tests.releases.release import BEFORE, THIS, Release
from tests.simgpu import mps_node
from tests.simgpu.conftest import Node

pytestmark = pytest.mark.slow

__all__ = ["load"]  # a fixture

MIB = 1 << 20
BOTH = (BEFORE, THIS)
by_library = pytest.mark.parametrize("library", BOTH, ids=lambda release: f"library of {release.name}")


def started(
    directory: Path,
    gpus: Path,
    release: Release,
    program: Callable[[], None] = running.takes_and_launches,
    *,
    pod: str = "pod1",
    mps_pipe: Path | None = None,
) -> subprocess.Popen[str]:
    """Start a program in a container of a pod that was created under this release's agent."""
    box = Container(directory / "arbiter", gpus, preload=(release.library,), mps_pipe=mps_pipe)
    environment = {"TEST_POD": pod, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}
    return box.start(command(program), environment)


def asked(process: subprocess.Popen[str], take_bytes: int) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{take_bytes}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def becomes_limited(process: subprocess.Popen[str], limit_bytes: int) -> None:
    """Wait until it may allocate so much and not a byte more: at once, or after it has joined the next arbiter."""
    until = time.monotonic() + 20
    while (answer := asked(process, limit_bytes)) != f"0 2 {limit_bytes}":
        assert time.monotonic() < until, (answer, limit_bytes)
        time.sleep(0.1)


@by_library
def test_a_running_program_keeps_exact_limits_across_upgrade_and_downgrade(
    short_path: Path, gpus: Path, library: Release
) -> None:
    uuid = simulated.uuids(gpus)[0]
    with arbiter(BEFORE, short_path, uuid):
        process = started(short_path, gpus, library)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        becomes_limited(process, 64 * MIB)
    held_bytes = 64 * MIB
    with finishing(process):
        for step, release in enumerate((THIS, BEFORE, THIS, THIS), start=1):
            limit_bytes = held_bytes + MIB + step
            with arbiter(release, short_path, uuid) as arbiters:
                assert arbiters.give("pod1", limit_bytes) == {"pod1": [held_bytes, 1]}
                becomes_limited(process, limit_bytes)
                second = started(short_path, gpus, library, running.looks)
                output, errors = second.communicate(timeout=30)
                assert (output.strip(), complaints_of_the_library(errors)) == (f"2 (0, {limit_bytes})", [])
                held_bytes = arbiters.give("pod1", limit_bytes)["pod1"][0]
                assert held_bytes == limit_bytes
        _, errors = process.communicate("", timeout=30)
    (line,) = complaints_of_the_library(errors)
    assert "the arbiter went away" in line


def test_an_mps_client_goes_on_under_the_previous_agent_and_after_it(short_path: Path, gpus: Path) -> None:
    """Against the advice to end it before: its daemon is left alone, and its memory limit holds."""
    uuid = simulated.uuids(gpus)[0]
    with contextlib.ExitStack() as stack:
        mps = stack.enter_context(mps_node.daemon(Node(gpus), short_path / "mps", "-m", CUDA_VISIBLE_DEVICES=uuid))
        pipe = Path(mps.environment["CUDA_MPS_PIPE_DIRECTORY"])
        with arbiter(THIS, short_path, uuid, "mps"):
            process = stack.enter_context(finishing(started(short_path, gpus, THIS, mps_pipe=pipe)))
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            becomes_limited(process, 64 * MIB)
        for step, release in enumerate((BEFORE, THIS), start=1):
            with arbiter(release, short_path, uuid, "mps") as arbiters:
                arbiters.give("pod1", 64 * MIB + step)
                becomes_limited(process, 64 * MIB + step)
                assert mps.clients() == {process.pid}


@by_library
@pytest.mark.parametrize("agent", BOTH, ids=lambda release: f"agent of {release.name}")
def test_a_rejection_is_understood_across_releases(
    short_path: Path, gpus: Path, library: Release, agent: Release
) -> None:
    with arbiter(agent, short_path, simulated.uuids(gpus)[0]):
        process = started(short_path, gpus, library, running.looks, pod="ghost")
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = lines_of_the_library(errors)
    assert "the arbiter refused this process: this node has no pod with the UID" in line
    assert "cuInit: 802" in errors + output


def test_processes_with_different_libraries_share_one_ledger(short_path: Path, gpus: Path) -> None:
    with arbiter(THIS, short_path, simulated.uuids(gpus)[0]) as arbiters:
        first, second = (started(short_path, gpus, library, running.holds) for library in BOTH)
        with finishing(first), finishing(second):
            for process in (first, second):
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            assert [asked(first, 40 * MIB), asked(second, 24 * MIB + 1), asked(second, 24 * MIB)] == ["0", "2", "0"]
            assert arbiters.give("pod1", 64 * MIB + 1) == {"pod1": [64 * MIB, 2]}
            assert [asked(first, 2), asked(first, 1), asked(second, 1)] == ["2", "0", "2"]
            first.kill()
            first.wait(10)
            assert asked(second, 40 * MIB + 1) == "0"


@pytest.mark.parametrize("agent", BOTH, ids=lambda release: f"agent of {release.name}")
async def test_shares_with_different_libraries_take_turns(
    short_path: Path, gpus: Path, load: Path, agent: Release
) -> None:
    async def window() -> tuple[float, float]:
        with arbiter(agent, short_path, simulated.uuids(gpus)[0]):
            programs = []
            for pod, library in (("pod1", BEFORE), ("pod2", THIS)):
                box = Container(short_path / "arbiter", gpus, preload=(library.library,))
                environment = {"TEST_POD": pod, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}
                programs.append(box.start([load, "async", "1000"], environment))
            with finishing(programs[0]), finishing(programs[1]):
                for program in programs:
                    assert program.stdout is not None
                    assert program.stdout.readline() == "ready\n"
                for program in programs:
                    begin(program, after=3.0, seconds=2.0)
                return await percent(programs[0]), await percent(programs[1])

    await split(window, (22, 38), 70)
