"""The agent with every pynvml that pyproject.toml allows, on simulated GPUs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import uuid
from pathlib import Path

import pynvml
import pytest

from deviceplugin.hardware import nvml, nvml_mig
from tests import programs
from tests.clients.cuda import packages
from tests.deviceplugin import simulated
from tests.deviceplugin.hardware.programs import any_pynvml

LOCKS = Path(__file__).with_name("pynvml")
PROFILES = {
    "1_SLICE_REV1": (("me",), ()),
    "2_SLICE_REV1": (("me",), ()),
    "1_SLICE_ALL_ME": (("me.all",), ()),
    "2_SLICE_ALL_ME": (("me.all",), ()),
    "1_SLICE_GFX": (("gfx",), ()),
    "2_SLICE_GFX": (("gfx",), ()),
    "3_SLICE_GFX": (("gfx",), ()),
    "4_SLICE_GFX": (("gfx",), ()),
    "1_SLICE_NO_ME": ((), ("me",)),
    "2_SLICE_NO_ME": ((), ("me",)),
}


def read_with(site_packages: Path | None, directory: Path) -> tuple[str, list[str]]:
    """Return the version of pynvml, and what the agent reads with it from new GPUs, two of which are in a multi-node
    fabric.
    """
    directory.mkdir()
    description = simulated.NODE.read_text()
    for number, bus_id in enumerate(("07", "08", "87", "88")):
        device = directory / f"sys/bus/pci/devices/0000:{bus_id}:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{number}\n")
    (directory / "node.ini").write_text(description.replace("[gpu 2]", f"fabric = {uuid.UUID(int=1 << 64)}.7\n[gpu 2]"))
    simulated.command("create", directory / "node.ini", directory / "gpus")
    paths = [str(path) for path in (site_packages, simulated.ROOT) if path is not None]
    result = subprocess.run(
        programs.command(any_pynvml.reads_everything, str(directory / "sys")),
        env={**simulated.environment(directory / "gpus"), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    version, *read = result.stdout.splitlines()
    return str(ast.literal_eval(version)), read


@pytest.mark.slow
@pytest.mark.usefixtures("simulation")
@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.lock")), ids=lambda lock: lock.stem)
def test_agent_reads_the_same_with_an_older_pynvml(tmp_path: Path, lock: Path) -> None:
    (site_packages,) = packages.python(lock).parents[1].glob("lib/python*/site-packages")
    version, read = read_with(site_packages, tmp_path / "older")
    assert f"nvidia-ml-py=={version}" in lock.read_text()
    _, newest = read_with(None, tmp_path / "newest")
    assert read == newest
    assert "00000000-0000-0001-0000-000000000000.7" in "".join(read)


def test_oldest_lock_is_the_packages_lower_bound() -> None:
    (floor,) = re.findall(r'"nvidia-ml-py>=([0-9.]+)"', (simulated.ROOT / "pyproject.toml").read_text())
    assert f"nvidia-ml-py=={floor}." in (LOCKS / "oldest.lock").read_text()


def test_numbers_match_the_newest_pynvml() -> None:
    assert {
        getattr(pynvml, f"NVML_GPU_INSTANCE_PROFILE_{name}"): attributes for name, attributes in PROFILES.items()
    } == nvml_mig.ATTRIBUTES
    assert nvml_mig.PROFILE_COUNT == pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
    assert nvml.RECOVERY_ACTION_FIELD == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    names = ("NONE", "GPU_RESET", "NODE_REBOOT", "DRAIN_P2P", "DRAIN_AND_RESET")
    assert [getattr(pynvml, f"NVML_GPU_RECOVERY_ACTION_{name}") for name in names] == list(nvml.RECOVERY_ACTIONS)
