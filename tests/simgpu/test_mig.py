"""MIG on simulated GPUs, through the real pynvml and programs that use CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.deviceplugin.simulated import BUILD
from tests.programs import command
from tests.simgpu.conftest import COMMAND, PROBE, Node, finishing
from tests.simgpu.programs import mig
from tests.simgpu.test_mps import took


def halves(node: Node) -> list[str]:
    """Cut GPU 0 into two halves and return their UUIDs."""
    return node.program(mig.halves).split()


def test_unused_a100_changes_mode_at_once_and_l4_never(node: Node) -> None:
    printed = node.program(mig.takes_the_mode)
    assert printed.splitlines() == [
        "[0, 0] 0 [1, 1]",
        "NVMLError_NotSupported NVMLError_NotSupported",
        "NVMLError_NotSupported",
    ]


@pytest.mark.slow
def test_gpu_in_use_changes_mode_at_its_next_reset(node: Node) -> None:
    with finishing(node.held("--allocate", "1GiB")):
        code = (
            "print(nvml.nvmlDeviceSetMigMode(gpu(0), 1) == nvml.NVML_ERROR_IN_USE, nvml.nvmlDeviceGetMigMode(gpu(0)))"
        )
        assert node.nvml(code) == "True [0, 1]"
        assert "end them before the reset" in node.simgpu("reset", node.directory, "0").stderr
    assert node.simgpu("reset", node.directory, "0").returncode == 0
    assert node.nvml("print(nvml.nvmlDeviceGetMigMode(gpu(0)))") == "[1, 1]"


@pytest.mark.slow
def test_instances_exist_for_all_processes_until_destroyed(node: Node) -> None:
    first, second = halves(node)
    assert first != second
    printed = node.program(mig.looks_and_destroys)
    name = "NVIDIA A100-SXM4-80GB MIG 3g.40gb 40448 0"
    assert printed.splitlines() == [
        f"{name} 1 0 42 1 {first}",
        f"{name} 2 0 42 1 {second}",
        "NVMLError_NotFound NVMLError_NotSupported",
        "NVMLError_InUse",
        "NVMLError_NotFound NVMLError_NotFound",
    ]


def test_instances_need_room_and_a_valid_placement(node: Node) -> None:
    printed = node.program(mig.what_fits)
    assert printed.splitlines() == [
        "[0, 0, 0, 0, 0]",
        "NVMLError_InsufficientResources NVMLError_InvalidArgument NVMLError_InvalidArgument",
        "NVMLError_InsufficientResources",
        "[0, 0, 0] NVMLError_InsufficientResources",
    ]


@pytest.mark.slow
def test_program_sees_only_its_instance(node: Node) -> None:
    first, second = halves(node)
    for variable in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        filled = node.run([PROBE, "--fill"], {variable: second}).stdout
        assert "NVIDIA A100-SXM4-80GB MIG 3g.40gb" in filled
        assert filled.splitlines()[-1] == f"filled {40448 << 20}"
    with finishing(node.start([PROBE, "--fill", "--hold", "60"], {"NVIDIA_VISIBLE_DEVICES": first})) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("holding"):
            assert process.poll() is None
        assert f"filled {40448 << 20}" in node.run([PROBE, "--fill"], {"NVIDIA_VISIBLE_DEVICES": second}).stdout
        assert "filled 0" in node.run([PROBE, "--fill"], {"NVIDIA_VISIBLE_DEVICES": first}).stdout
        printed = node.program(mig.instances_in_use)
    assert printed.splitlines() == ["[(1, 0)]", "1 40448", "0 0", "NVMLError_InUse", "True [1, 0]"]


@pytest.mark.slow
def test_instances_compute_side_by_side_on_their_multiprocessors(node: Node) -> None:
    first, second = ({"NVIDIA_VISIBLE_DEVICES": uuid} for uuid in halves(node))
    # Of 108 multiprocessors, 42 are 39 %.
    assert took(node, "k_50ms", first, second) == pytest.approx([128, 128], abs=15)
    assert took(node, "k_25pct_50ms", first) == pytest.approx([50], abs=15)


@pytest.mark.slow
def test_gpu_in_mig_mode_is_no_device_and_programs_get_one_instance(node: Node) -> None:
    halves(node)
    assert node.run([PROBE]).stdout.count("MIG 3g.40gb") == 1
    node.nvml("nvml.nvmlDeviceSetMigMode(gpu(1), 1)")
    assert "total" not in node.run([PROBE], {"CUDA_VISIBLE_DEVICES": "MIG-none"}).stdout
    for path in node.directory.glob("gpu[023]-*"):
        path.unlink()
    assert node.run([PROBE]).returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_creating_instances_needs_write_access(node: Node) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        shutil.copytree(node.directory, directory, dirs_exist_ok=True)
        # A separate directory: other users may not have access to the project's.
        shutil.copy(BUILD / "libnvidia-ml.so.1", directory)
        Path(directory).chmod(0o755)
        for path in Path(directory).iterdir():
            path.chmod(0o444)
        ended = Node(Path(directory)).run(command(mig.cuts_as_nobody), {"LD_LIBRARY_PATH": directory})
        assert ended.stdout == "NVMLError_NoPermission\n", ended.stderr


def test_exclusive_gpu_admits_one_process(node: Node) -> None:
    node.nvml("nvml.nvmlDeviceSetComputeMode(gpu(0), nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)")
    with finishing(node.held("--allocate", "1GiB")):
        alone = node.run([PROBE, "--allocate", "1GiB"])
        assert alone.returncode == 1
        assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in alone.stdout + alone.stderr
    assert node.run([PROBE, "--allocate", "1GiB"]).returncode == 0


def test_show_lists_instances(node: Node) -> None:
    first, second = halves(node)
    shown = subprocess.run([COMMAND, "show", node.directory], capture_output=True, text=True, check=True).stdout
    assert f"mig       3g.40gb at 0  GI 1 CI 0  {first}" in shown
    assert f"mig       3g.40gb at 4  GI 2 CI 0  {second}" in shown
