"""`simgpu sysfs` writes the kernel's files about the GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.simgpu.conftest import Node
from tests.simgpu.programs import sysfs


def test_kernel_files_agree_with_nvml(node: Node, tmp_path: Path) -> None:
    assert node.simgpu("sysfs", node.directory, tmp_path / "root").returncode == 0
    devices = tmp_path / "root/sys/bus/pci/devices"
    said = {
        path.name: tuple((path / name).read_text().strip() for name in ("vendor", "device", "class", "numa_node"))
        for path in devices.iterdir()
    }
    output = node.program(sysfs.pci_devices)
    assert said == {address: (*rest,) for address, *rest in map(str.split, output.splitlines())}
    a100 = devices / "0000:07:00.0"
    config = (a100 / "config").read_bytes()
    assert (config[:4].hex(), config[9:12].hex(), len(config)) == ("de10b220", "000203", 256)
    start, end, _ = (int(word, 16) for word in (a100 / "resource").read_text().splitlines()[1].split())
    assert end - start + 1 == 128 << 30
    assert (a100 / "driver").resolve() == tmp_path / "root/sys/bus/pci/drivers/nvidia"
    assert (tmp_path / "root/proc/modules").read_text().startswith("nvidia ")
    assert node.simgpu("sysfs", node.directory, tmp_path / "root").returncode == 0, "overwrites existing files"


def test_each_mig_device_has_its_own_capabilities(node: Node, tmp_path: Path) -> None:
    assert node.simgpu("sysfs", node.directory, tmp_path).returncode == 0
    lines = (tmp_path / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    minors = dict(line.split() for line in lines)
    assert len(set(minors.values())) == len(lines)
    assert {"config": "1", "monitor": "2", "gpu0/gi0/access": "3"}.items() <= minors.items()
    assert "gpu3/gi14/ci7/access" in minors


def test_unwritable_directory_is_an_error(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "choose a writable directory" in node.simgpu("sysfs", node.directory, tmp_path / "file").stderr
    assert "sysfs takes DIRECTORY" in node.simgpu("sysfs", node.directory).stderr
