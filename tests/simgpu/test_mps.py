"""MPS clients run concurrently; other processes take turns with all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu.conftest import DRIVERS, Node, finishing
from tests.simgpu.programs import mps as programs
from tests.simgpu.test_rendezvous import says, steps

pytestmark = pytest.mark.slow

CONTROL = DRIVERS / "nvidia-cuda-mps-control"

# Runs a kernel on request, and reports how many milliseconds that took by the GPU's clock.


@pytest.fixture
def mps(node: Node, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A control daemon; the value is the environment of its clients."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    (tmp_path / "pipe").mkdir()
    with finishing(node.start([CONTROL, "-f"], environment)) as daemon:
        while tell(node, environment, "get_default_active_thread_percentage") != "100.0\n":
            assert daemon.poll() is None
        yield environment


def tell(node: Node, environment: dict[str, str], command: str) -> str:
    with finishing(node.start([CONTROL], environment)) as process:
        return process.communicate(command + "\n", timeout=120)[0]


def took(node: Node, kernel: str, *environments: dict[str, str]) -> list[float]:
    """Start these processes together and return how many milliseconds the kernel took in each of them."""
    with contextlib.ExitStack() as stack:
        starts = command(programs.runs_a_kernel, kernel)
        running = [stack.enter_context(finishing(node.start(starts, environment))) for environment in environments]
        assert [says(program) for program in running] == ["ready"] * len(running)
        steps(*running)
        return [float(says(program)) for program in running]


def test_clients_run_concurrently_and_others_take_turns(node: Node, mps: dict[str, str]) -> None:
    half = "k_50pct_300ms"
    assert took(node, half, mps, mps) == pytest.approx([300, 300], abs=15)
    assert max(took(node, half, {}, {})) > 400
    *clients, _ = took(node, half, mps, mps, {})
    assert 400 < max(clients) < 700  # sequentially it would be 900


def test_client_stays_below_its_percentage(node: Node, mps: dict[str, str]) -> None:
    half = {**mps, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    assert took(node, "k_50ms", half) == pytest.approx([100], abs=15)
    assert took(node, "k_50pct_50ms", half) == pytest.approx([50], abs=15)
    assert took(node, "k_100ms", half, half) == pytest.approx([200, 200], abs=15)
    tell(node, mps, "set_default_active_thread_percentage 25")
    assert took(node, "k_50ms", half) == pytest.approx([200], abs=15)
    assert took(node, "k_50ms", {}) == pytest.approx([50], abs=15)  # a process that is not a client has all of it


def test_clients_have_a_separate_list(node: Node, mps: dict[str, str]) -> None:
    listed = (
        "print([[p.pid for p in ask(gpu(0))] for ask in "
        "(nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses)])"
    )
    with finishing(node.held("--allocate", "1MiB")) as process:
        assert node.nvml(listed) == str([[process.pid], []])
    with finishing(node.held("--allocate", "1MiB", environment=mps)) as client:
        assert node.nvml(listed) == str([[], [client.pid]])
