"""NVML's figures other than memory agree with each other and with the GPU's load."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.programs import Parameters, command
from tests.simgpu.conftest import PROBE, Node, finishing
from tests.simgpu.programs import sensors

GIB = 1 << 30
BUSY = [PROBE, "--seconds", "60", "--duration-us", "1000"]


def answer(
    node: Node, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
) -> Any:
    return ast.literal_eval(node.program(function, *values, **named))


@pytest.mark.slow
def test_idle_gpu_is_cool_and_slow_and_busy_gpu_is_neither(node: Node) -> None:
    idle, _ = answer(node, sensors.sensor_values, busy=False)
    with finishing(node.start(BUSY)):
        busy, other = answer(node, sensors.sensor_values, busy=True)
    assert idle == {
        "utilisation": 0,
        "milliwatts": 60_000,
        "limit": 400_000,
        "degrees": 30,
        "mhz": 210,
        "most_mhz": 1410,
        "idle": True,
        "state": 0,
    }
    assert 40 <= busy["utilisation"] <= 100
    assert idle["milliwatts"] < busy["milliwatts"] < busy["limit"]
    assert idle["degrees"] < busy["degrees"] < 85
    assert (busy["mhz"], busy["idle"]) == (busy["most_mhz"], False)
    assert (other["utilisation"], other["limit"]) == (0, 72_000)


@pytest.mark.slow
def test_processes_share_the_utilization_of_the_gpu(node: Node) -> None:
    assert answer(node, sensors.utilisation_of_each, busy=False) == [{}, 0]
    with finishing(node.held("--allocate", "1MiB")) as idle, finishing(node.start(BUSY)) as worker:
        parts, whole = answer(node, sensors.utilisation_of_each, busy=True)
    assert parts[idle.pid] == 0
    assert 0 < parts[worker.pid] <= 100
    assert whole >= 40


@pytest.mark.slow
def test_utilization_of_a_process_follows_its_own_kernels(node: Node) -> None:
    with finishing(node.start(command(sensors.half_busy))) as alone:
        assert 20 < answer(node, sensors.utilisation_since)[alone.pid] < 70
        with finishing(node.start([PROBE, "--seconds", "60", "--duration-us", "20000"])) as other:
            parts = answer(node, sensors.utilisation_since, processes=2)
    assert parts[alone.pid] < parts[other.pid]
    assert 60 < parts[alone.pid] + parts[other.pid] <= 102  # each is rounded


@pytest.mark.slow
def test_running_kernel_counts_without_polling(node: Node) -> None:
    with finishing(node.start([PROBE, "--seconds", "60", "--duration-us", "60000000"])) as process:
        assert answer(node, sensors.utilisation_since)[process.pid] > 90


def test_field_values_agree_and_each_has_a_result(node: Node) -> None:
    values = answer(node, sensors.fields)
    assert values == [1, 60_000, 400_000, 1, None]


@pytest.mark.slow
def test_cpu_affinity_and_bar1_size_are_reported(node: Node) -> None:
    cpus, bar1, fabric = answer(node, sensors.topology)
    assert 0 < sum(cpus) <= (os.cpu_count() or 1)
    assert bar1 == [128 * GIB, 128 * GIB]
    assert fabric == 0


@pytest.mark.slow
def test_data_center_gpus_have_no_fans_and_others_do(node: Node) -> None:
    assert answer(node, sensors.fans) is None
    path = node.directory.parent / "desktop.ini"
    path.write_text("[gpu 0]\nmodel = NVIDIA GeForce RTX 4090\nmemory = 24GiB\ncompute-capability = 8.9\n")
    assert node.simgpu("create", "--replace", path, node.directory).returncode == 0
    assert answer(node, sensors.fans) == (1, 30)


@pytest.mark.parametrize("processes", ["Graphics", "MPSCompute"])
def test_lists_of_graphics_and_mps_processes_are_empty(node: Node, processes: str) -> None:
    with finishing(node.held("--allocate", "1MiB")):
        assert node.nvml(f"print(nvml.nvmlDeviceGet{processes}RunningProcesses(gpu(0)))") == "[]"


def test_mig_devices_have_no_sensors_and_whole_gpus_no_mig_devices(node: Node) -> None:
    values = answer(node, sensors.readings_of_a_mig_device)
    assert values == [0, 7, "none"]
