"""CDI specification files: valid, and in sync with the GPUs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.allocation import answer
from deviceplugin.injection import cdi_specs
from deviceplugin.state.node_state import Observable
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Offered
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice

GPU, OTHER, PART = "GPU-1111", "GPU-2222", "MIG-3333"
GPUS = [
    HardwareGpu(GPU, 0),
    HardwareGpu(OTHER, 1, mig_enabled=True, mig_devices=(HardwareMigDevice(PART, 0, "1g.5gb"),)),
]
NODES = answer.DevicePaths(
    {
        GPU: ("/dev/nvidia0",),
        OTHER: ("/dev/nvidia1",),
        PART: ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"),
    },
    ("/dev/nvidiactl", "/dev/nvidia-uvm"),
)
CRI = ("cdi-cri",)


def check(document: dict[str, Any]) -> None:
    """Check a specification against CDI's SPEC.md, version 0.5.0."""
    assert document["cdiVersion"] == "0.5.0"
    vendor, _, kind = document["kind"].partition("/")
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]", vendor)
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", kind)
    names = [device["name"] for device in document["devices"]]
    assert names
    assert len(set(names)) == len(names)
    for device in (*document["devices"], {"name": "x", "containerEdits": document.get("containerEdits", {"env": []})}):
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", device["name"])
        edits = device["containerEdits"]
        assert edits
        assert set(edits) <= {"env", "deviceNodes", "mounts", "hooks"}
        assert all("=" in entry for entry in edits.get("env", ()))
        assert all(node["path"].startswith("/") for node in edits.get("deviceNodes", ()))
        assert all(mount["hostPath"] and mount["containerPath"] for mount in edits.get("mounts", ()))
        assert all(hook["hookName"] == "createContainer" and hook["path"] for hook in edits.get("hooks", ()))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Create a host with a driver."""
    folder = tmp_path / "host/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.550.54.15", "libnvidia-ml.so.550.54.15", "libcuda.so.550.1.old", "libc.so.6"):
        (folder / name).touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.550.54.15")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    programs = tmp_path / "host/usr/bin"
    programs.mkdir()
    (programs / "nvidia-smi").touch()
    return tmp_path / "host"


def made(tmp_path: Path, host: Path, *, gpus: list[HardwareGpu] = GPUS, in_use: bool = False) -> cdi_specs.Specs:
    directory = tmp_path / "cdi"
    return cdi_specs.Specs(directory, gpus=lambda: gpus, nodes=lambda: NODES, in_use=lambda: in_use, root=host)


def written(tmp_path: Path, kind: str = "gpu") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((tmp_path / "cdi" / f"k8s.device-plugin.nvidia.com-{kind}.json").read_text())
    return document


def test_describes_each_device_by_uuid_and_index_and_all_together(tmp_path: Path, host: Path) -> None:
    made(tmp_path, host).renew(NodeSettings(device_list_strategies=CRI))
    document = written(tmp_path)
    check(document)
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }
    assert set(nodes) == {GPU, OTHER, PART, "0", "1", "1:0", "all"}
    assert nodes[PART] == nodes["1:0"] == list(NODES.of_device[PART])
    assert nodes["all"] == ["/dev/nvidia0", "/dev/nvidia1", *NODES.of_device[PART][1:]]
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == ["k8s.device-plugin.nvidia.com-gpu.json"]


def test_container_gets_every_driver_file_and_no_other_devices(tmp_path: Path, host: Path) -> None:
    made(tmp_path, host).renew(NodeSettings(device_list_strategies=CRI, driver_root="/run/nvidia/driver"))
    common = written(tmp_path)["containerEdits"]
    assert common["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    folder = "/usr/lib/x86_64-linux-gnu"
    names = ("libcuda.so", "libcuda.so.1", "libcuda.so.550.54.15", "libnvidia-ml.so.550.54.15")
    wanted = ["/usr/bin/nvidia-smi", *(f"{folder}/{name}" for name in names)]
    assert [mount["containerPath"] for mount in common["mounts"]] == wanted
    assert [mount["hostPath"] for mount in common["mounts"]] == [f"/run/nvidia/driver{path}" for path in wanted]
    assert common["deviceNodes"] == [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]
    assert "hooks" not in common


def test_finds_the_operators_driver_below_the_host(tmp_path: Path, host: Path) -> None:
    (tmp_path / "machine/run/nvidia").mkdir(parents=True)
    host.rename(tmp_path / "machine/run/nvidia/driver")
    (tmp_path / "machine/usr/local/nvidia/toolkit").mkdir(parents=True)
    (tmp_path / "machine/usr/local/nvidia/toolkit/nvidia-cdi-hook").touch()
    settings = NodeSettings(device_list_strategies=CRI, container_driver_root=str(tmp_path / "machine"))
    made(tmp_path, host).renew(settings)
    common = written(tmp_path)["containerEdits"]
    assert common["mounts"][0]["hostPath"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert common["mounts"][0]["containerPath"] == "/usr/bin/nvidia-smi"
    assert common["deviceNodes"] == [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]
    assert common["hooks"][0]["path"] == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"


def test_uses_a_configured_hook_outside_the_driver_root(tmp_path: Path, host: Path) -> None:
    (host / "usr/bin/nvidia-ctk").touch()  # in the driver's container but not on the host
    alone = NodeSettings(device_list_strategies=CRI, container_driver_root=str(host), driver_root="/run/nvidia/driver")
    made(tmp_path, host).renew(alone)
    assert "hooks" not in written(tmp_path)["containerEdits"]
    named = dataclasses.replace(alone, cdi_hook="/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    made(tmp_path, host).renew(named)
    assert written(tmp_path)["containerEdits"]["hooks"][0]["path"] == named.cdi_hook


@pytest.mark.parametrize(("program", "words"), [("nvidia-ctk", ["hook"]), ("nvidia-cdi-hook", [])])
def test_uses_a_hook_that_the_host_has(tmp_path: Path, host: Path, program: str, words: list[str]) -> None:
    (host / "usr/bin" / program).touch()
    made(tmp_path, host).renew(NodeSettings(device_list_strategies=CRI, cdi_hook=f"/usr/bin/{program}"))
    (hook,) = written(tmp_path)["containerEdits"]["hooks"]
    arguments = [program, *words, "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"]
    assert hook == {"hookName": "createContainer", "path": f"/usr/bin/{program}", "args": arguments}


def test_every_allocated_name_is_in_a_file(tmp_path: Path, host: Path) -> None:
    (host / "dev").mkdir()
    (host / "dev/gdrdrv").touch()
    devices = [Offered(GPU, GPU, GPU, "0", Mode.EXCLUSIVE), Offered(PART, PART, OTHER, "1:0", Mode.MIG)]
    for by in ("uuid", "index"):
        settings = NodeSettings(device_list_strategies=CRI, device_id_strategy=by, gdrcopy=True, imex_channels=(0,))
        made(tmp_path, host).renew(settings)
        response = answer.container_response("nvidia.com/gpu", devices, settings, answer_id="x", nodes=NODES)
        names = [device.name for device in response.cdi_devices]
        known = set()
        for path in (tmp_path / "cdi").iterdir():
            document = json.loads(path.read_text())
            check(document)
            known |= {f"{document['kind']}={device['name']}" for device in document["devices"]}
        assert len(names) == 4
        assert set(names) <= known


def test_removes_missing_devices_and_unused_files(tmp_path: Path, host: Path) -> None:
    made(tmp_path, host).renew(NodeSettings(device_list_strategies=CRI))
    made(tmp_path, host, gpus=GPUS[:1]).renew(NodeSettings(device_list_strategies=CRI))
    assert {device["name"] for device in written(tmp_path)["devices"]} == {GPU, "0", "all"}
    made(tmp_path, host, in_use=True).renew(NodeSettings())
    assert PART in {device["name"] for device in written(tmp_path)["devices"]}
    other = tmp_path / "cdi" / "nvidia.yaml"
    other.touch()
    made(tmp_path, host).renew(NodeSettings())
    assert list((tmp_path / "cdi").iterdir()) == [other]


def test_writes_nothing_without_cdi(tmp_path: Path, host: Path) -> None:
    made(tmp_path, host).renew(NodeSettings())
    assert not (tmp_path / "cdi").exists()


def test_unwritable_directory_is_an_error_with_a_remedy(tmp_path: Path, host: Path) -> None:
    (tmp_path / "cdi").touch()
    with pytest.raises(cdi_specs.SpecError, match="--cdi-directory must name a directory of the host"):
        made(tmp_path, host).renew(NodeSettings(device_list_strategies=CRI))


def test_names_use_one_vendor() -> None:
    assert answer.cdi_device_name(answer.CDI_VENDOR, "gpu", cdi_specs.ALL) == "k8s.device-plugin.nvidia.com/gpu=all"


async def test_rewrites_files_that_were_removed(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cdi_specs, "POLL_SECONDS", 0.01)
    made_specs, advertised = made(tmp_path, host), Observable(0)
    path = tmp_path / "cdi" / "k8s.device-plugin.nvidia.com-gpu.json"
    running = asyncio.create_task(made_specs.run(advertised, lambda: NodeSettings(device_list_strategies=CRI)))

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(0.01)

    await until(path.exists)
    path.unlink()
    await until(path.exists)
    check(written(tmp_path))
    shutil.rmtree(tmp_path / "cdi")
    (tmp_path / "cdi").write_text("no directory")
    await until(lambda: "Could not write the CDI" in caplog.text)
    (tmp_path / "cdi").unlink()
    await until(path.exists)
    assert caplog.text.count("Could not write the CDI") == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
