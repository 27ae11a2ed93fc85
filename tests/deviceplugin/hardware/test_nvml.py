"""The real pynvml on simulated GPUs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.hardware.programs import nvml_driver
from tests.programs import command
from tests.simgpu import mps_node
from tests.simgpu.conftest import Node


@pytest.mark.slow
def test_describes_every_gpu(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.describes)
    uuids = simulated.uuids(gpus)
    model = "NVIDIA A100-SXM4-40GB"
    assert output == [
        (uuids[0], 0, model, 40 << 30, (8, 0), 0, "00000000:07:00.0", "fractional", True),
        (uuids[1], 1, model, 40 << 30, (8, 0), 0, "00000000:08:00.0", "fractional", True),
        (uuids[2], 2, model, 40 << 30, (8, 0), 1, "00000000:87:00.0", "fractional", True),
        (uuids[3], 3, model, 40 << 30, (8, 0), 1, "00000000:88:00.0", "fractional", True),
    ]


def test_prefers_the_kernels_numa_node(gpus: Path, tmp_path: Path) -> None:
    for bus_id, text in (("0000:07:00.0", "3\n"), ("0000:08:00.0", "-1\n")):
        device = tmp_path / "sys/bus/pci/devices" / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(text)
    assert simulated.printed(gpus, nvml_driver.numa_nodes, str(tmp_path / "sys")) == [[3, None, 1, 1]]


def test_linked_gpus_share_a_group(gpus: Path) -> None:
    assert simulated.printed(gpus, nvml_driver.link_groups) == [[0, 0, 0, 0]]


def test_lost_gpu_is_reported_by_index_and_comes_back(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.one_is_lost_and_comes_back)
    assert output == [
        ([0, 1, 3], [(2, "nvmlDeviceGetHandleByIndex(2) failed: GPU is lost")]),
        ([0, 1, 2, 3], []),
    ]


@pytest.mark.slow
def test_xid_names_its_gpu_even_if_lost(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.waits_for_failures)
    uuids = simulated.uuids(gpus)
    assert output == [None, (uuids[1], 94), (uuids[3], 79), (uuids[0], 48)]


@pytest.mark.slow
def test_wait_lasts_until_its_timeout_despite_a_lost_gpu(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.waits_beside_a_lost_one)
    assert output == [None, True]


def test_reports_a_gpu_without_events_until_it_can_be_watched(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.one_is_mute)
    assert output == [{simulated.uuids(gpus)[1]: "the driver does not report its events: ERROR_UNKNOWN"}, {}]


@pytest.mark.slow
def test_reinitializing_finds_all_gpus_and_events(gpus: Path) -> None:
    output = simulated.printed(gpus, nvml_driver.reinitializes)
    assert output == [4, 94]


@pytest.mark.parametrize("is_client", [False, True], ids=["by itself", "as a client of MPS"])
def test_lists_processes_with_their_memory(gpus: Path, tmp_path: Path, is_client: bool) -> None:
    with mps_node.daemon(Node(gpus), tmp_path):
        output = simulated.printed(gpus, nvml_driver.processes, str(tmp_path / "pipe") if is_client else None)
    assert output == [[(True, True)], (), (True, ())]


def test_unknown_gpu_is_an_error_with_call_and_gpu(gpus: Path) -> None:
    result = simulated.run(gpus, nvml_driver.processes_of, "GPU-other")
    assert "NvmlError: nvmlDeviceGetHandleByUUID(GPU-other) failed: Not Found" in result.stderr


@pytest.mark.slow
def test_node_without_gpus_gets_a_remedy(gpus: Path, tmp_path: Path) -> None:
    result = simulated.run(tmp_path / "nothing", nvml_driver.opens)
    assert "nvmlInit() failed: Driver Not Loaded: the node's kernel has no NVIDIA driver loaded" in result.stderr


def test_node_without_the_driver_gets_a_remedy() -> None:
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
