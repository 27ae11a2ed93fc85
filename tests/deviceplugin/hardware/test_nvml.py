"""The real pynvml on simulated GPUs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deviceplugin import simulated


def run(gpus: Path, program: str) -> list[Any]:
    """The values that the program printed, one a line."""
    result = simulated.run(gpus, program)
    assert result.returncode == 0, result.stderr
    return [ast.literal_eval(line) for line in result.stdout.splitlines()]


def test_every_gpu_is_described(gpus: Path) -> None:
    found = run(
        gpus,
        """
        for card in nvml.Nvml().snapshot().gpus:
            print((card.uuid, card.index, card.model, card.memory_bytes, card.compute_capability, card.numa_node,
                   card.pci_bus_id, card.mode.value, card.healthy))
        """,
    )
    uuids = simulated.uuids(gpus)
    model = "NVIDIA A100-SXM4-40GB"
    assert found == [
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
    program = f"""
        import pathlib
        print([card.numa_node for card in nvml.Nvml(sys_root=pathlib.Path({str(tmp_path / "sys")!r})).snapshot().gpus])
        """
    assert run(gpus, program) == [[3, None, 1, 1]]


def test_gpus_that_links_join_have_one_number(gpus: Path) -> None:
    program = "print([card.link_group for card in nvml.Nvml().snapshot().gpus])"
    assert run(gpus, program) == [[0, 0, 0, 0]]


def test_a_lost_gpu_is_told_by_its_index_and_comes_back(gpus: Path) -> None:
    found = run(
        gpus,
        """
        driver = nvml.Nvml()
        for verb in (("fail", "2", "lost"), ("heal", "2")):
            simgpu(*verb)
            seen = driver.snapshot()
            print(([card.index for card in seen.gpus], [(one.index, one.reason) for one in seen.unreadable]))
        """,
    )
    assert found == [
        ([0, 1, 3], [(2, "nvmlDeviceGetHandleByIndex(2) failed: GPU is lost")]),
        ([0, 1, 2, 3], []),
    ]


def test_an_xid_names_its_gpu_also_when_that_is_lost_by_then(gpus: Path) -> None:
    found = run(
        gpus,
        """
        driver = nvml.Nvml()
        print(driver.wait_for_xid(0))
        for failure in (("1", "xid=94"), ("3", "lost"), ("0", "ecc")):
            simgpu("fail", *failure)
            event = driver.wait_for_xid(5)
            print((event.gpu, event.number))
        """,
    )
    uuids = simulated.uuids(gpus)
    assert found == [None, (uuids[1], 94), (uuids[3], 79), (uuids[0], 48)]


def test_waiting_takes_its_time_even_when_a_lost_gpu_makes_the_driver_refuse_to_wait(gpus: Path) -> None:
    found = run(
        gpus,
        """
        import time
        driver = nvml.Nvml()
        driver.wait_for_xid(0)
        simgpu("fail", "3", "lost")
        driver.wait_for_xid(1)
        began = time.monotonic()
        print(driver.wait_for_xid(0.3))
        print(time.monotonic() - began >= 0.3)
        """,
    )
    assert found == [None, True]


def test_a_gpu_whose_events_nobody_would_hear_of_is_told_until_it_can_be_watched(gpus: Path) -> None:
    found = run(
        gpus,
        """
        driver = nvml.Nvml()
        simgpu("fail", "1", "mute")
        driver.wait_for_xid(0)
        print(dict(driver.unwatched))
        simgpu("heal", "1")
        driver.begin_anew()
        driver.wait_for_xid(0)
        print(dict(driver.unwatched))
        """,
    )
    assert found == [{simulated.uuids(gpus)[1]: "the driver does not report its events: ERROR_UNKNOWN"}, {}]


def test_beginning_anew_finds_everything_again(gpus: Path) -> None:
    found = run(
        gpus,
        """
        driver = nvml.Nvml()
        driver.wait_for_xid(0)
        driver.begin_anew()
        print(len(driver.snapshot().gpus))
        driver.wait_for_xid(0)
        simgpu("fail", "1", "xid=94")
        print(driver.wait_for_xid(5).number)
        driver.close()
        driver.close()
        """,
    )
    assert found == [4, 94]


@pytest.mark.parametrize("is_client", [False, True], ids=["by itself", "as a client of MPS"])
def test_processes_on_a_gpu_are_listed_with_their_memory(gpus: Path, tmp_path: Path, is_client: bool) -> None:
    (tmp_path / "control").touch()
    found = run(
        gpus,
        f"""
        import ctypes, os
        os.environ |= {{"CUDA_MPS_PIPE_DIRECTORY": {str(tmp_path)!r}}} if {is_client} else {{}}
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuInit(0) == 0
        context, pointer, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
        assert cuda.cuDeviceGet(ctypes.byref(device), 1) == 0
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
        driver = nvml.Nvml()
        cards = driver.snapshot().gpus
        print([(one.pid == os.getpid(), one.memory_bytes >= 1 << 30) for one in driver.processes(cards[1].uuid)])
        print(driver.processes(cards[0].uuid))
        print((driver.users(cards[1].uuid) == driver.processes(cards[1].uuid), driver.users(cards[0].uuid)))
        """,
    )
    assert found == [[(True, True)], (), (True, ())]


def test_an_unknown_gpu_is_an_error_that_names_call_and_gpu(gpus: Path) -> None:
    result = simulated.run(gpus, 'nvml.Nvml().processes("GPU-other")')
    assert "NvmlError: nvmlDeviceGetHandleByUUID(GPU-other) failed: Not Found" in result.stderr


def test_a_node_without_gpus_is_told_what_to_do(gpus: Path, tmp_path: Path) -> None:
    result = simulated.run(tmp_path / "nothing", "nvml.Nvml()")
    assert "nvmlInit() failed: Driver Not Loaded: the node's kernel has no NVIDIA driver loaded" in result.stderr


def test_a_node_without_the_driver_is_told_what_to_do() -> None:
    program = "from deviceplugin.hardware import nvml; nvml.Nvml()"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=simulated.ROOT,
        env={"LD_LIBRARY_PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "libnvidia-ml.so.1 is not on the library path: install NVIDIA's driver on the node" in result.stderr
