"""Tests that limits follow the GPU under any number in the process, and apply to MIG devices."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import DRIVERS, ROOT, Container
from tests.interposer.programs import allocating, devices
from tests.interposer.reference_arbiter import ReferenceArbiter, Share
from tests.programs import PATH, command
from tests.simgpu.programs import mig

NO_DEVICE = "100:"
ORDERS = {
    "all": (None, "0:10 20"),
    "reversed": ("1,0", "0:20 10"),
    "only the second": ("1", "0:20"),
    "UUIDs": ("{1},{0}", "0:20 10"),
    "UUID prefixes": ("{1:.12},{0:.12}", "0:20 10"),
    "with a space": ("1, 0", "0:20 10"),
    "a duplicate, if the driver allows it": ("0,0", "0:10 10"),
    "a number and a UUID": ("1,{0}", "0:20 10"),
    "up to the first invalid number": ("1,-1,0", "0:20"),
    "empty": ("", NO_DEVICE),
    "none": ("-1", NO_DEVICE),
    "an unknown UUID": ("GPU-ffffffff-0000-0000-0000-000000000000", NO_DEVICE),
}


@pytest.mark.parametrize(("wanted", "seen"), ORDERS.values(), ids=ORDERS.keys())
def test_limits_follow_the_gpu_and_not_its_number(
    container: Container, make_arbiter: ArbiterMaker, uuids: list[str], wanted: str | None, seen: str
) -> None:
    make_arbiter(10 * MIB, 20 * MIB)
    environment = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted.format(*uuids)}
    assert replace(container, environment=environment).program(devices.looks_and_fills) == seen


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Path, list[str]]:
    """The directory of a GPU split into two MIG devices, and their UUIDs."""
    directory = tmp_path / "cut"
    sample = ROOT / "simgpu" / "samples" / "two-models.ini"
    subprocess.run([DRIVERS / "simgpu", "create", sample, directory], check=True)
    environment = {"SIMGPU_DIR": str(directory), "LD_LIBRARY_PATH": str(DRIVERS)}
    result = subprocess.run(
        command(mig.halves),
        env={**environment, "PYTHONPATH": PATH},
        check=True,
        capture_output=True,
        text=True,
    )
    return directory, result.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_share_of_a_mig_device_has_the_limit_of_that_device(
    container: Container, arbiter_directory: Path, halves: tuple[Path, list[str]], variable: str
) -> None:
    gpus, migs = halves
    box = replace(container, gpus=gpus)
    shares = [Share(uuid.removeprefix("MIG-"), size) for uuid, size in zip(migs, (10 * MIB, 20 * MIB), strict=True)]
    with ReferenceArbiter(arbiter_directory, shares):
        assert replace(box, environment={variable: migs[0]}).program(devices.looks_and_fills) == "0:10"
        assert replace(box, environment={variable: migs[1]}).program(devices.looks_and_fills) == "0:20"
        assert box.filled_bytes({variable: migs[1]}) == 20 * MIB


@pytest.mark.slow
def test_mig_device_outside_the_share_is_refused(
    container: Container, arbiter_directory: Path, halves: tuple[Path, list[str]]
) -> None:
    gpus, migs = halves
    with ReferenceArbiter(arbiter_directory, [Share(migs[0].removeprefix("MIG-"), MIB)]):
        box = replace(container, gpus=gpus, environment={"CUDA_VISIBLE_DEVICES": migs[1]})
        assert box.program(allocating.prints_what_comes, 1) == "800"
