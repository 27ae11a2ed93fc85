"""MPS clients run concurrently; other processes take turns with all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu import mps_node
from tests.simgpu.conftest import Node, finishing
from tests.simgpu.mps_node import Daemon, client
from tests.simgpu.programs import mps as programs
from tests.simgpu.test_rendezvous import says, steps

pytestmark = pytest.mark.slow

MPS_ENABLED = 133


@pytest.fixture
def mps(node: Node, tmp_path: Path) -> Iterator[Daemon]:
    with mps_node.daemon(node, tmp_path) as daemon:
        yield daemon


def took(node: Node, kernel: str, *environments: Mapping[str, str]) -> list[float]:
    """Start these processes together and return how many milliseconds the kernel took in each of them."""
    with contextlib.ExitStack() as stack:
        starts = command(programs.runs_a_kernel, kernel)
        running = [stack.enter_context(finishing(node.start(starts, environment))) for environment in environments]
        assert [says(program) for program in running] == ["ready"] * len(running)
        steps(*running)
        return [float(says(program)) for program in running]


def test_clients_run_concurrently_and_others_take_turns(node: Node, mps: Daemon) -> None:
    half = "k_50pct_300ms"
    assert took(node, half, mps.environment, mps.environment) == pytest.approx([300, 300], abs=15)
    assert max(took(node, half, {}, {})) > 400
    *clients, _ = took(node, half, mps.environment, mps.environment, {})
    assert 400 < max(clients) < 700  # sequentially it would be 900


def test_client_stays_below_its_percentage(node: Node, mps: Daemon) -> None:
    half = {**mps.environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    assert took(node, "k_50ms", half) == pytest.approx([100], abs=15)
    assert took(node, "k_50pct_50ms", half) == pytest.approx([50], abs=15)
    assert took(node, "k_100ms", half, half) == pytest.approx([200, 200], abs=15)
    assert took(node, "k_50ms", {}) == pytest.approx([50], abs=15)  # a process that is not a client has all of it


def test_percentages_over_100_share_the_gpu(node: Node, mps: Daemon) -> None:
    most = {**mps.environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "80"}
    assert max(took(node, "k_100ms", most, most)) == pytest.approx(200, abs=30)  # 125 alone


def test_servers_percentage_holds_for_later_clients(node: Node, mps: Daemon) -> None:
    assert took(node, "k_50ms", mps.environment) == pytest.approx([50], abs=15)
    mps.tell("set_default_active_thread_percentage 25")
    assert took(node, "k_50ms", mps.environment) == pytest.approx([50], abs=15)  # only the next server
    server = mps.server()
    starts = command(programs.runs_a_kernel, "k_50ms")
    with finishing(node.start(starts, mps.environment)) as before:
        assert says(before) == "ready"
        assert mps.tell(f"set_active_thread_percentage {server} 25") == "25.0\n"
        assert mps.tell(f"get_active_thread_percentage {server}") == "25.0\n"
        steps(before)
        assert float(says(before)) == pytest.approx(50, abs=15)
    assert took(node, "k_50ms", mps.environment) == pytest.approx([200], abs=15)
    mps.tell(f"shutdown_server {server}")
    half = {**mps.environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    assert took(node, "k_50ms", half) == pytest.approx([200], abs=15), "of the new server; a client cannot raise it"


def test_clients_have_a_separate_list(node: Node, mps: Daemon) -> None:
    listed = (
        "print([[p.pid for p in ask(gpu(0))] for ask in "
        "(nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses)])"
    )
    with finishing(node.held("--allocate", "1MiB")) as process:
        assert node.nvml(listed) == str([[process.pid], []])
    with finishing(node.held("--allocate", "1MiB", environment=mps.environment)) as held:
        assert node.nvml(listed) == str([[], [held.pid]])


def test_processes_without_a_daemon_run_outside_mps(node: Node, mps: Daemon, tmp_path: Path) -> None:
    (tmp_path / "stale").mkdir()
    (tmp_path / "stale" / "control").touch()
    for pipe in (tmp_path / "nothing", tmp_path / "stale"):
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"}
        with client(node, environment) as outside:
            assert outside.first == "0 0"
            assert outside.does(f"attribute {MPS_ENABLED}") == 0
        assert took(node, "k_50ms", environment) == pytest.approx([50], abs=15)
    with client(node, mps.environment) as inside:
        assert inside.does(f"attribute {MPS_ENABLED}") == 1


def exclusive(node: Node) -> None:
    node.nvml("nvml.nvmlDeviceSetComputeMode(gpu(0), nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)")


UNAVAILABLE = "0 46"


def test_server_has_an_exclusive_gpu_even_without_clients(node: Node, mps: Daemon) -> None:
    exclusive(node)
    with client(node, mps.environment) as one, client(node, mps.environment) as two, client(node, {}) as outside:
        assert (one.first, two.first, outside.first) == ("0 0", "0 0", UNAVAILABLE)
    with client(node, {}) as outside:
        assert outside.first == UNAVAILABLE
    mps.tell(f"shutdown_server {mps.server()}")
    with client(node, {}) as outside, client(node, mps.environment) as late:
        assert (outside.first, late.first) == ("0 0", UNAVAILABLE)


PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
OUT_OF_MEMORY = 2


@pytest.mark.parametrize(
    ("limits", "gib", "result"),
    [
        ("0=30G", 20, OUT_OF_MEMORY),  # never wider than the server's
        ("0=4G", 8, OUT_OF_MEMORY),
        ("0=4G,1=4G", 8, OUT_OF_MEMORY),
        ("0=4G,9=1G", 30, 0),  # the escape: GPU 9 is not visible, and even the server's limit is dropped
    ],
)
def test_pinned_limit_that_names_an_invisible_gpu_drops_all_limits(
    node: Node, mps: Daemon, limits: str, gib: int, result: int
) -> None:
    mps.tell("set_default_device_pinned_mem_limit 0 10G")
    with client(node, {**mps.environment, PINNED: limits}) as one:
        assert one.does(f"allocate {gib}") == result


def test_servers_pinned_limit_holds_for_later_clients(node: Node, mps: Daemon) -> None:
    with client(node, mps.environment) as before:
        server = mps.server()
        assert mps.tell(f"set_device_pinned_mem_limit {server} 0 10G") == ""
        assert mps.tell(f"get_device_pinned_mem_limit {server} 0") == "10240M\n"
        assert before.does("allocate 20") == 0
    with client(node, mps.environment) as late:
        assert late.does("allocate 20") == OUT_OF_MEMORY
