"""The simulated CUDA driver: all processes share a GPU's memory and time."""

from __future__ import annotations

import ast
import re
import subprocess
import time

import pytest

from tests.programs import command
from tests.simgpu.conftest import DRIVERS, PROBE, ROOT, Node, finishing
from tests.simgpu.programs import cuda, sensors

GIB = 1 << 30


@pytest.mark.parametrize("how", [[], ["--direct"]], ids=["cuGetProcAddress", "dlsym"])
def test_gpu_can_be_filled_to_the_byte(node: Node, how: list[str]) -> None:
    result = node.run([PROBE, "--device", "2", "--fill", *how])
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == f"filled {24 * GIB}"


def test_processes_share_a_gpu_and_dead_ones_free_their_memory(node: Node) -> None:
    with finishing(node.held("--allocate", "60GiB")):
        result = node.run([PROBE, "--allocate", f"{20 * GIB},1"])
        assert result.stdout.splitlines()[-2:] == [f"allocated {20 * GIB}", "refused 1: CUDA_ERROR_OUT_OF_MEMORY"]
        assert result.returncode == 1
        assert f"total {80 * GIB} free {20 * GIB}" in node.run([PROBE]).stdout
    with finishing(node.held("--allocate", "40GiB")), finishing(node.held("--allocate", "40GiB")):
        pass
    node.program(cuda.allocates, 80 * GIB)


@pytest.mark.slow
def test_memory_moving_between_processes_is_not_counted_twice(node: Node) -> None:
    with (
        finishing(node.start(command(cuda.takes_the_whole_again_and_again))) as first,
        finishing(node.start(command(cuda.takes_the_whole_again_and_again))) as second,
    ):
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
        most = node.nvml("print(max(nvml.nvmlDeviceGetMemoryInfo(gpu(0)).used for _ in range(20000)))")
    assert int(most) == 80 * GIB


def test_memory_is_real_and_copies_copy_it(node: Node) -> None:
    node.program(cuda.copies)


def test_a_handle_can_be_mapped_twice(node: Node) -> None:
    node.program(cuda.maps_memory_twice)


def test_pool_keeps_memory_up_to_its_threshold(node: Node) -> None:
    node.program(cuda.pool_with_a_threshold)


@pytest.mark.slow
def test_other_streams_reuse_memory_after_the_free_is_reached(node: Node) -> None:
    node.program(cuda.frees_in_a_stream)


def test_shared_memory_is_counted_once(node: Node) -> None:
    node.program(cuda.shares_memory)


@pytest.mark.slow
def test_kernels_of_all_processes_run_one_after_another(node: Node) -> None:
    began = time.monotonic()
    processes = [node.start([PROBE, "--kernels", "250", "--duration-us", "2000"]) for _ in range(3)]
    seconds = []
    for process in processes:
        with finishing(process):
            output, _ = process.communicate(timeout=120)
            seconds.append(float(re.findall(r"in ([\d.]+) seconds", output)[0]))
    together = time.monotonic() - began
    assert together >= 1.5
    assert max(seconds) >= 1.0
    assert node.run([PROBE, "--device", "1", "--kernels", "100", "--duration-us", "100"]).returncode == 0


@pytest.mark.slow
def test_utilization_is_the_busy_part_of_the_last_second(node: Node) -> None:
    work = [str(PROBE), "--kernels", "1000", "--duration-us", "1000"]
    first, second = ast.literal_eval(node.program(sensors.utilisation_after, work))
    assert 40 <= first <= 100
    assert second == 0


def test_streams_and_events_follow_the_timeline(node: Node) -> None:
    node.program(cuda.timeline)


def test_cuda_visible_devices_selects_and_orders(node: Node) -> None:
    uuids = re.findall(r"GPU-\S+", node.run([PROBE]).stdout)
    cases = {
        "2,0": [uuids[2], uuids[0]],
        uuids[1]: [uuids[1]],
        uuids[3][:12]: [uuids[3]],
        "1,9,2": [uuids[1]],
    }
    for value, expected in cases.items():
        assert re.findall(r"GPU-\S+", node.run([PROBE], {"CUDA_VISIBLE_DEVICES": value}).stdout) == expected
    assert "CUDA_ERROR_NO_DEVICE" in node.run([PROBE], {"CUDA_VISIBLE_DEVICES": "-1"}).stdout


def test_cuda_does_not_work_in_the_child_of_a_fork(node: Node) -> None:
    node.program(cuda.forks)


def test_failing_gpu_stops_its_programs(node: Node) -> None:
    node.program(cuda.on_a_gpu_that_fails, str(DRIVERS / "simgpu"), str(node.directory))


def test_the_form_of_a_function_follows_version_and_flags(node: Node) -> None:
    node.program(cuda.forms)


def test_driver_exports_exactly_the_functions_in_its_tables() -> None:
    tables = "".join(path.read_text() for path in (ROOT / "simgpu" / "cuda" / "abi").glob("*.def"))
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", DRIVERS / "libcuda.so.1"], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in listed.splitlines()} == set(
        re.findall(r"^(?:ENTRY|UNSIMULATED)\((\w+),", tables, re.MULTILINE)
    )
