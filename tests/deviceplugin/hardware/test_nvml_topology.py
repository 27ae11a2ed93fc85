"""How GPUs are joined, by the real pynvml on simulated GPUs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.deviceplugin import simulated


def run(gpus: Path, program: str) -> list[Any]:
    result = simulated.run(gpus, f"from deviceplugin.hardware import nvml_topology\nopened = nvml.Nvml()\n{program}")
    assert result.returncode == 0, result.stderr
    return [ast.literal_eval(line) for line in result.stdout.splitlines()]


PATHS = "print({pair: (path.common, path.nvlinks) for pair, path in nvml_topology.paths(UUIDS).items()})"


def test_each_pair_has_its_nearest_switch_and_its_links(gpus: Path) -> None:
    uuids = simulated.uuids(gpus)
    (found,) = run(gpus, f"UUIDS = {uuids}\n{PATHS}")
    near, far = ("SingleSwitch", 1), ("CrossCPU", 1)
    assert found == {
        (uuids[0], uuids[1]): near,
        (uuids[0], uuids[2]): far,
        (uuids[0], uuids[3]): far,
        (uuids[1], uuids[2]): far,
        (uuids[1], uuids[3]): far,
        (uuids[2], uuids[3]): near,
    }


@pytest.mark.usefixtures("_simulation")
def test_gpus_without_links_are_joined_by_the_bus_alone(tmp_path: Path) -> None:
    description = simulated.NODE.read_text().replace("nvlink = all", "nvlink = none")
    (tmp_path / "node.ini").write_text(description)
    simulated.command("create", tmp_path / "node.ini", tmp_path / "gpus")
    (found,) = run(tmp_path / "gpus", f"UUIDS = {simulated.uuids(tmp_path / 'gpus')}\n{PATHS}")
    assert {links for _, links in found.values()} == {0}


def test_of_a_lost_gpu_nothing_is_told(gpus: Path) -> None:
    uuids = simulated.uuids(gpus)
    (found,) = run(gpus, f"UUIDS = {uuids}\nsimgpu('fail', '1', 'lost')\n{PATHS}")
    assert all(uuids[1] not in pair for pair in found)
    assert (uuids[2], uuids[3]) in found


@pytest.mark.usefixtures("_simulation")
def test_the_fabric_of_a_gpu_is_told_if_it_is_in_one(tmp_path: Path) -> None:
    cluster = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    description = simulated.NODE.read_text().replace("[gpu 2]", f"fabric = {cluster}.7\n[gpu 2]")
    (tmp_path / "node.ini").write_text(description)
    simulated.command("create", tmp_path / "node.ini", tmp_path / "gpus")
    found = run(tmp_path / "gpus", f"print(repr([*map(nvml_topology.clique, {simulated.uuids(tmp_path / 'gpus')})]))")
    assert found == [[f"{cluster}.7", f"{cluster}.7", "", ""]]


def test_a_gpu_on_its_way_into_a_fabric_is_in_none(gpus: Path) -> None:
    # The simulated driver is never on the way.
    program = """
import pynvml
def attached(state, cluster):
    def told(handle, pointer):
        pointer._obj.clusterUuid[:] = cluster
        pointer._obj.cliqueId, pointer._obj.state = 7, state
    pynvml.nvmlDeviceGetGpuFabricInfo = lambda handle, info: told(handle, info) or pynvml.NVML_SUCCESS
    return repr(nvml_topology.clique(UUID))
print(attached(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, range(16)))
print(attached(pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, range(16)))
print(attached(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, [0] * 16))
"""
    found = run(gpus, f"UUID = {simulated.uuids(gpus)[0]!r}\n{program}")
    assert found == ["00010203-0405-0607-0809-0a0b0c0d0e0f.7", "", ""]
