"""Which GPU a program means: CUDA's numbers are another order than the share's, and MIG devices are GPUs of their own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import DRIVERS, PROBE, ROOT, Container
from tests.interposer.reference_arbiter import ReferenceArbiter, Share

# Of each device that the program has: its size, and that it ends where it says.
LOOK = """
c = ctypes.CDLL("libcuda.so.1")
print(c.cuInit(0), end=":")
count, total = ctypes.c_int(), ctypes.c_size_t()
if c.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for device in range(count.value):
        one = Cuda(device=device)
        assert c.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
        assert one.info() == (total.value, total.value)
        assert one.allocate(total.value + 1)[0] == OUT_OF_MEMORY
        result, pointer = one.allocate(total.value)
        assert result == SUCCESS and one.info()[0] == 0 and one.free(pointer) == SUCCESS
        print(total.value // MIB, end=" ")
"""

NO_DEVICE = "100:"
ORDERS = {
    "as they are": (None, "0:10 20"),
    "turned round": ("1,0", "0:20 10"),
    "the second alone": ("1", "0:20"),
    "UUIDs": ("{1},{0}", "0:20 10"),
    "beginnings of UUIDs": ("{1:.12},{0:.12}", "0:20 10"),
    "with a blank": ("1, 0", "0:20 10"),
    "one twice, should a driver let it be": ("0,0", "0:10 10"),
    "a number and a UUID": ("1,{0}", "0:20 10"),
    "up to one that is none": ("1,-1,0", "0:20"),
    "empty": ("", NO_DEVICE),
    "none": ("-1", NO_DEVICE),
    "another GPU": ("GPU-ffffffff-0000-0000-0000-000000000000", NO_DEVICE),
}


@pytest.mark.parametrize(("wanted", "seen"), ORDERS.values(), ids=ORDERS.keys())
def test_limits_follow_the_gpu_and_not_its_number(
    container: Container, make_arbiter: ArbiterMaker, uuids: list[str], wanted: str | None, seen: str
) -> None:
    make_arbiter(10 * MIB, 20 * MIB)
    environment = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted.format(*uuids)}
    assert container.python(LOOK, environment) == seen


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Path, list[str]]:
    """A GPU cut into two MIG devices: where it is, and their UUIDs."""
    directory = tmp_path / "cut"
    sample = ROOT / "simgpu" / "samples" / "two-models.ini"
    subprocess.run([DRIVERS / "simgpu", "create", sample, directory], check=True)
    code = """
import ctypes, pynvml as nvml
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
nvml.nvmlDeviceSetMigMode(gpu, 1)
for start in (0, 4):
    place = nvml.c_nvmlGpuInstancePlacement_t(start, 4)
    one = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, ctypes.byref(place))
    nvml.nvmlGpuInstanceCreateComputeInstance(one, 2)
for number in (0, 1):
    print(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)))
"""
    environment = {"SIMGPU_DIR": str(directory), "LD_LIBRARY_PATH": str(DRIVERS)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return directory, result.stdout.split()


@pytest.mark.parametrize("variable", ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_a_share_of_a_mig_device_has_the_limit_of_that_device(
    container: Container, arbiter_directory: Path, halves: tuple[Path, list[str]], variable: str
) -> None:
    gpus, migs = halves
    box = replace(container, gpus=gpus)
    shares = [Share(uuid.removeprefix("MIG-"), size) for uuid, size in zip(migs, (10 * MIB, 20 * MIB), strict=True)]
    with ReferenceArbiter(arbiter_directory, shares):
        assert box.python(LOOK, {variable: migs[0]}) == "0:10"
        assert box.python(LOOK, {variable: migs[1]}) == "0:20"
        assert box.run([PROBE, "--fill"], {variable: migs[1]}).stdout.splitlines()[-1] == f"filled {20 * MIB}"


def test_a_mig_device_that_the_share_does_not_have_gives_nothing(
    container: Container, arbiter_directory: Path, halves: tuple[Path, list[str]]
) -> None:
    gpus, migs = halves
    with ReferenceArbiter(arbiter_directory, [Share(migs[0].removeprefix("MIG-"), MIB)]):
        code = "print(Cuda().allocate(1)[0])"
        assert replace(container, gpus=gpus).python(code, {"CUDA_VISIBLE_DEVICES": migs[1]}) == "800"
