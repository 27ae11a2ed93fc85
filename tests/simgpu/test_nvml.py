"""The real pynvml reads the simulated node like a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.programs import command
from tests.simgpu.conftest import DRIVERS, PROBE, Node, finishing
from tests.simgpu.programs import nvml

GIB = 1 << 30


def test_inventory_is_read(node: Node) -> None:
    printed = node.program(nvml.inventory)
    driver, cuda, gpus = json.loads(printed)
    assert (driver, cuda) == ("550.54.15", 12040)
    a100 = ["NVIDIA A100-SXM4-80GB", 80 * GIB, [8, 0]]
    l4 = ["NVIDIA L4", 24 * GIB, [8, 9]]
    assert gpus == [
        [0, 0, *a100, "00000000:07:00.0", 0, [0, 0]],
        [1, 1, *a100, "00000000:08:00.0", 0, [0, 0]],
        [2, 2, *l4, "00000000:81:00.0", 1, None],
        [3, 3, *l4, "00000000:82:00.0", 1, None],
    ]


def test_container_sees_its_gpus_numbered_from_0(node: Node) -> None:
    for path in node.directory.glob("gpu[02]-*"):
        path.unlink()
    printed = node.program(nvml.numbers)
    assert printed.splitlines() == ["0 1", "1 3"]


def test_without_gpus_there_is_no_driver(node: Node) -> None:
    for path in node.directory.iterdir():
        path.unlink()
    result = node.run([sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"])
    assert "NVMLError_DriverNotLoaded" in result.stderr


def test_topology_follows_the_description(node: Node) -> None:
    printed = node.program(nvml.nearness)
    assert printed.splitlines() == ["0 10 40 50", "True False", "1 0", "00000000:08:00.0"]


@pytest.mark.slow
def test_processes_are_listed_with_their_memory_until_they_die(node: Node) -> None:
    with finishing(node.held("--device", "2", "--allocate", "3GiB,1")) as process:
        assert node.program(nvml.processes, 2) == str([(process.pid, 3 * GIB + 1)])
        assert node.nvml("print(nvml.nvmlDeviceGetMemoryInfo(gpu(2)).used)") == str(3 * GIB + 1)
    assert node.program(nvml.processes, 2) == "[]"
    assert node.nvml("print(nvml.nvmlDeviceGetMemoryInfo(gpu(2)).used)") == "0"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="creating a pid namespace needs root")
def test_pids_are_in_the_namespace_of_the_caller(node: Node) -> None:
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with finishing(node.start([*inside, PROBE, "--allocate", "1GiB", "--hold", "60"])) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("holding"):
            assert process.poll() is None
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        assert node.program(nvml.processes, 0) == str([(int(children.stdout), GIB)]), (
            "the host sees the container's process"
        )
        other = node.run([*inside, *command(nvml.processes, 0)])
        assert other.stdout == "[]\n", "another container does not"


def test_nvml_does_not_disturb_cuda_in_the_same_process(node: Node) -> None:
    # Closing any descriptor of a file drops its POSIX locks: neither library may do that to the other.
    with finishing(node.start(command(nvml.beside_cuda))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert node.nvml("print(nvml.nvmlDeviceGetMemoryInfo(gpu(0)).used)") == str(GIB)


def test_failure_arrives_as_an_event(node: Node) -> None:
    node.simgpu("fail", node.directory, "0", "xid=13")  # before any client listens
    with finishing(node.start(command(nvml.events_of_four))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "registered\n"
        assert node.simgpu("fail", node.directory, "1", "xid=31").returncode == 0
        assert node.simgpu("fail", node.directory, "2", "ecc").returncode == 0
        assert node.simgpu("fail", node.directory, "3", "xid=63").returncode == 0
        output, errors = process.communicate(timeout=15)
    arrived = output.splitlines()
    assert sorted(arrived[:4]) == ["1 8 31", "2 2 0", "2 8 48", "3 8 63"], errors
    assert arrived[4:] == ["nothing more", "1"]


@pytest.mark.parametrize("how", ["lost", "xid=79"])
def test_lost_gpu_stays_lost_until_healed(node: Node, how: str) -> None:
    assert node.simgpu("fail", node.directory, "0", how).returncode == 0
    assert node.program(nvml.sizes).splitlines() == ["4", "lost", str(80 * GIB)]
    assert node.run([PROBE]).returncode == 1
    assert node.simgpu("heal", node.directory, "0").returncode == 0
    assert node.program(nvml.sizes).splitlines() == ["4", str(80 * GIB), str(80 * GIB)]


def test_wait_ends_when_a_gpu_is_lost_after_its_event(node: Node) -> None:
    printed = node.program(nvml.waits_beyond_a_loss, str(DRIVERS / "simgpu"), str(node.directory))
    assert printed.splitlines() == ["79", "lost"]


@pytest.mark.slow
def test_loop_without_pause_does_not_spin_and_gets_events_of_other_gpus(node: Node) -> None:
    printed = node.program(nvml.waits_in_a_loop, str(DRIVERS / "simgpu"), str(node.directory))
    lost = "NVMLError_GpuIsLost"
    assert printed.splitlines() == [f"79 {lost}", f"{lost} {lost} True", "48", "NVMLError_Timeout"]


def test_unknown_failure_is_rejected(node: Node) -> None:
    assert "no such GPU" in node.simgpu("fail", node.directory, "9", "lost").stderr
    assert (
        "write xid=N (1 to 1000), ecc, lost, mute, silent or hung"
        in node.simgpu("fail", node.directory, "0", "xid=x").stderr
    )
