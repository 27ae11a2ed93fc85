"""Clients of MPS run side by side; one that is none takes turns with all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu.conftest import DRIVERS, Node, finishing
from tests.simgpu.programs import mps as programs
from tests.simgpu.test_meetings import says, steps

pytestmark = pytest.mark.slow

CONTROL = DRIVERS / "nvidia-cuda-mps-control"

# Runs a kernel when it is told to, and says how many milliseconds that took by the GPU's clock.


@pytest.fixture
def mps(node: Node, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A control daemon; the environment of its clients."""
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
    """How many milliseconds the kernel took in each of these processes, which begin together."""
    with contextlib.ExitStack() as stack:
        starts = command(programs.runs_a_kernel, kernel)
        running = [stack.enter_context(finishing(node.start(starts, environment))) for environment in environments]
        assert [says(program) for program in running] == ["ready"] * len(running)
        steps(*running)
        return [float(says(program)) for program in running]


def test_clients_run_side_by_side_and_others_take_turns(node: Node, mps: dict[str, str]) -> None:
    half = "k_50pct_300ms"
    assert took(node, half, mps, mps) == pytest.approx([300, 300], abs=15)
    assert max(took(node, half, {}, {})) > 400
    *clients, _ = took(node, half, mps, mps, {})
    assert 400 < max(clients) < 700  # one after another it would be 900


def test_a_client_has_no_more_than_its_percentage(node: Node, mps: dict[str, str]) -> None:
    half = {**mps, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    assert took(node, "k_50ms", half) == pytest.approx([100], abs=15)
    assert took(node, "k_50pct_50ms", half) == pytest.approx([50], abs=15)
    assert took(node, "k_100ms", half, half) == pytest.approx([200, 200], abs=15)
    tell(node, mps, "set_default_active_thread_percentage 25")
    assert took(node, "k_50ms", half) == pytest.approx([200], abs=15)
    assert took(node, "k_50ms", {}) == pytest.approx([50], abs=15)  # who is no client has all of it


def test_clients_have_a_list_of_their_own(node: Node, mps: dict[str, str]) -> None:
    listed = (
        "print([[p.pid for p in ask(gpu(0))] for ask in "
        "(nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses)])"
    )
    with finishing(node.held("--allocate", "1MiB")) as process:
        assert node.nvml(listed) == str([[process.pid], []])
    with finishing(node.held("--allocate", "1MiB", environment=mps)) as client:
        assert node.nvml(listed) == str([[], [client.pid]])
