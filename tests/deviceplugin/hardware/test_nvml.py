"""The real pynvml on simulated GPUs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.hardware.programs import nvml_driver
from tests.programs import command


@pytest.mark.slow
def test_every_gpu_is_described(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.describes)
    uuids = simulated.uuids(gpus)
    model = "NVIDIA A100-SXM4-40GB"
    assert output == [
        (uuids[0], 0, model, 40 << 30, (8, 0), 0, "00000000:07:00.0", "fractional", True),
        (uuids[1], 1, model, 40 << 30, (8, 0), 0, "00000000:08:00.0", "fractional", True),
        (uuids[2], 2, model, 40 << 30, (8, 0), 1, "00000000:87:00.0", "fractional", True),
        (uuids[3], 3, model, 40 << 30, (8, 0), 1, "00000000:88:00.0", "fractional", True),
    ]


def test_what_the_kernel_says_of_the_numa_node_comes_first(gpus: Path, tmp_path: Path) -> None:
    for bus_id, text in (("0000:07:00.0", "3\n"), ("0000:08:00.0", "-1\n")):
        device = tmp_path / "sys/bus/pci/devices" / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(text)
    assert simulated.printed(gpus, nvml_driver.numa_nodes, str(tmp_path / "sys")) == [[3, None, 1, 1]]


def test_gpus_that_links_join_have_one_number(gpus: Path) -> None:
    assert simulated.printed(gpus, nvml_driver.link_groups) == [[0, 0, 0, 0]]


def test_a_lost_gpu_is_told_by_its_index_and_comes_back(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.one_is_lost_and_comes_back)
    assert output == [
        ([0, 1, 3], [(2, "nvmlDeviceGetHandleByIndex(2) failed: GPU is lost")]),
        ([0, 1, 2, 3], []),
    ]


@pytest.mark.slow
def test_an_xid_names_its_gpu_also_when_that_is_lost_by_then(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.waits_for_failures)
    uuids = simulated.uuids(gpus)
    assert output == [None, (uuids[1], 94), (uuids[3], 79), (uuids[0], 48)]


@pytest.mark.slow
def test_waiting_takes_its_time_even_when_a_lost_gpu_makes_the_driver_refuse_to_wait(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.waits_beside_a_lost_one)
    assert output == [None, True]


def test_a_gpu_whose_events_nobody_would_hear_of_is_told_until_it_can_be_watched(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.one_is_mute)
    assert output == [{simulated.uuids(gpus)[1]: "the driver does not report its events: ERROR_UNKNOWN"}, {}]


@pytest.mark.slow
def test_beginning_anew_finds_everything_again(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.begins_anew)
    assert output == [4, 94]


@pytest.mark.parametrize("is_client", [False, True], ids=["by itself", "as a client of MPS"])
def test_processes_on_a_gpu_are_listed_with_their_memory(gpus: Path, tmp_path: Path, is_client: bool) -> None:
    (tmp_path / "control").touch()
    output = simulated.printed(gpus, nvml_driver.processes, str(tmp_path) if is_client else None)
    assert output == [[(True, True)], (), (True, ())]


def test_an_unknown_gpu_is_an_error_that_names_call_and_gpu(gpus: Path) -> None:
    result = simulated.run(gpus, nvml_driver.processes_of, "GPU-other")
    assert "NvmlError: nvmlDeviceGetHandleByUUID(GPU-other) failed: Not Found" in result.stderr


@pytest.mark.slow
def test_a_node_without_gpus_is_told_what_to_do(gpus: Path, tmp_path: Path) -> None:
    result = simulated.run(tmp_path / "nothing", nvml_driver.opens)
    assert "nvmlInit() failed: Driver Not Loaded: the node's kernel has no NVIDIA driver loaded" in result.stderr


def test_a_node_without_the_driver_is_told_what_to_do() -> None:
    result = subprocess.run(
        command(nvml_driver.opens),
        cwd=simulated.ROOT,
        env={"LD_LIBRARY_PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "libnvidia-ml.so.1 is not on the library path: install NVIDIA's driver on the node" in result.stderr
