"""What NVML tells of a GPU beside its memory: one figure agrees with another, and with what the GPU does."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.programs import Parameters, command
from tests.simgpu.conftest import PROBE, Node, finishing
from tests.simgpu.programs import readings

GIB = 1 << 30
BUSY = [PROBE, "--seconds", "60", "--duration-us", "1000"]


def answer(
    node: Node, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
) -> Any:
    return ast.literal_eval(node.program(function, *values, **named))


@pytest.mark.slow
def test_an_idle_gpu_is_cool_and_slow_and_a_busy_one_is_neither(node: Node) -> None:
    idle, _ = answer(node, readings.feelings, busy=False)
    with finishing(node.start(BUSY)):
        busy, other = answer(node, readings.feelings, busy=True)
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
def test_those_who_work_have_the_gpus_utilisation_between_them(node: Node) -> None:
    assert answer(node, readings.utilisation_of_each, busy=False) == [{}, 0]
    with finishing(node.held("--allocate", "1MiB")) as idle, finishing(node.start(BUSY)) as worker:
        parts, whole = answer(node, readings.utilisation_of_each, busy=True)
    assert parts[idle.pid] == 0
    assert 0 < parts[worker.pid] <= 100
    assert whole >= 40


@pytest.mark.slow
def test_each_has_what_its_own_kernels_took(node: Node) -> None:
    with finishing(node.start(command(readings.half_busy))) as alone:
        assert 20 < answer(node, readings.utilisation_since)[alone.pid] < 70
        with finishing(node.start([PROBE, "--seconds", "60", "--duration-us", "20000"])) as other:
            parts = answer(node, readings.utilisation_since, processes=2)
    assert parts[alone.pid] < parts[other.pid]
    assert 60 < parts[alone.pid] + parts[other.pid] <= 102  # each is rounded


@pytest.mark.slow
def test_a_kernel_that_nobody_looks_at_counts_while_it_runs(node: Node) -> None:
    with finishing(node.start([PROBE, "--seconds", "60", "--duration-us", "60000000"])) as process:
        assert answer(node, readings.utilisation_since)[process.pid] > 90


def test_fields_are_the_same_figures_and_each_says_whether_it_is_there(node: Node) -> None:
    values = answer(node, readings.fields)
    assert values == [1, 60_000, 400_000, 1, None]


@pytest.mark.slow
def test_a_gpu_is_near_to_processors_and_its_memory_is_seen_through_a_window(node: Node) -> None:
    cpus, bar1, fabric = answer(node, readings.surroundings)
    assert 0 < sum(cpus) <= (os.cpu_count() or 1)
    assert bar1 == [128 * GIB, 128 * GIB]
    assert fabric == 0


@pytest.mark.slow
def test_gpus_of_data_centres_have_no_fans_and_others_do(node: Node) -> None:
    assert answer(node, readings.fans) is None
    path = node.directory.parent / "desktop.ini"
    path.write_text("[gpu 0]\nmodel = NVIDIA GeForce RTX 4090\nmemory = 24GiB\ncompute-capability = 8.9\n")
    assert node.simgpu("create", "--replace", path, node.directory).returncode == 0
    assert answer(node, readings.fans) == (1, 30)


@pytest.mark.parametrize("processes", ["Graphics", "MPSCompute"])
def test_nobody_draws_or_is_a_client_of_mps(node: Node, processes: str) -> None:
    with finishing(node.held("--allocate", "1MiB")):
        assert node.nvml(f"print(nvml.nvmlDeviceGet{processes}RunningProcesses(gpu(0)))") == "[]"


def test_readings_are_of_whole_gpus_and_a_gpu_that_is_not_cut_has_no_mig_devices(node: Node) -> None:
    values = answer(node, readings.readings_of_a_mig_device)
    assert values == [0, 7, "none"]
