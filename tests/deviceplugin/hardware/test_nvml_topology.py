"""Connections between GPUs, read with the real pynvml from simulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.hardware.programs import topology


def test_reads_switch_and_links_of_each_pair(gpus: Path) -> None:
    uuids = simulated.uuids(gpus)
    (paths,) = simulated.printed(gpus, topology.paths, uuids)
    near, far = ("SingleSwitch", 1), ("CrossCPU", 1)
    assert paths == {
        (uuids[0], uuids[1]): near,
        (uuids[0], uuids[2]): far,
        (uuids[0], uuids[3]): far,
        (uuids[1], uuids[2]): far,
        (uuids[1], uuids[3]): far,
        (uuids[2], uuids[3]): near,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("simulation")
def test_gpus_without_nvlink_are_connected_by_the_bus(tmp_path: Path) -> None:
    description = simulated.NODE.read_text().replace("nvlink = all", "nvlink = none")
    (tmp_path / "node.ini").write_text(description)
    simulated.command("create", tmp_path / "node.ini", tmp_path / "gpus")
    (paths,) = simulated.printed(tmp_path / "gpus", topology.paths, simulated.uuids(tmp_path / "gpus"))
    assert {links for _, links in paths.values()} == {0}


@pytest.mark.slow
def test_omits_paths_of_a_lost_gpu(gpus: Path) -> None:
    uuids = simulated.uuids(gpus)
    (paths,) = simulated.printed(gpus, topology.paths, uuids, "1", "lost")
    assert all(uuids[1] not in pair for pair in paths)
    assert (uuids[2], uuids[3]) in paths


@pytest.mark.usefixtures("simulation")
def test_reads_the_fabric_of_a_gpu(tmp_path: Path) -> None:
    cluster = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    description = simulated.NODE.read_text().replace("[gpu 2]", f"fabric = {cluster}.7\n[gpu 2]")
    (tmp_path / "node.ini").write_text(description)
    simulated.command("create", tmp_path / "node.ini", tmp_path / "gpus")
    output = simulated.printed(tmp_path / "gpus", topology.cliques, simulated.uuids(tmp_path / "gpus"))
    assert output == [[f"{cluster}.7", f"{cluster}.7", "", ""]]


@pytest.mark.slow
def test_gpu_that_is_joining_a_fabric_is_in_none(gpus: Path) -> None:
    output = simulated.printed(gpus, topology.on_its_way_into_a_fabric, simulated.uuids(gpus)[0])
    assert output == ["00010203-0405-0607-0809-0a0b0c0d0e0f.7", "", ""]
