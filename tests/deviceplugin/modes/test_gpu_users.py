"""The users of a GPU, from the kernel and the kubelet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deviceplugin.arbiter import socket_server
from deviceplugin.modes.gpu_users import JUST_GIVEN_SECONDS, GpuUsers
from deviceplugin.state import pod_resources
from gpushare import contract
from tests.deviceplugin.simulated_kubelet import Kubelet

PERCENT = contract.RESOURCE_PERCENT
UID = "0a0a0a0a-0000-0000-0000-000000000001"
IN_A_POD = f"0::/kubepods.slice/pod{UID}/{'c' * 64}\n"
POD = {"metadata": {"namespace": "ml", "name": "x", "uid": UID}}


def gpu_users(proc: Path, kept: Path | None = None) -> Any:
    nothing = SimpleNamespace(nvml=None)
    return GpuUsers(
        nothing,  # type: ignore[arg-type]
        pod_resources_socket=Path("/none"),
        pods=lambda: [POD],
        proc=proc,
        identify=socket_server.by_cgroup(proc),
        own_pids=lambda: frozenset({6}),
        checkpoint=kept,
    )


@pytest.mark.parametrize(
    ("name", "cgroup", "expected"),
    [
        (b"python", IN_A_POD, pod_resources.GpuUser(7, "python", "ml/x")),
        (b"\xff\xfe", IN_A_POD, pod_resources.GpuUser(7, "\ufffd\ufffd", "ml/x")),
        (b"nvidia-cuda-mps", "0::/system.slice/mps.service\n", pod_resources.GpuUser(7, "nvidia-cuda-mps")),
        (b"nvidia-cuda-mps", IN_A_POD, pod_resources.GpuUser(7, "nvidia-cuda-mps", "ml/x")),
        (b"Xorg", "0::/user.slice\n", pod_resources.GpuUser(7, "Xorg")),
    ],
    ids=["of a pod", "a name that is not text", "a name of MPS on the host", "a name of MPS in a pod", "of the host"],
)
def test_a_process_is_identified_by_its_pod_not_by_its_name(
    tmp_path: Path, name: bytes, cgroup: str, expected: pod_resources.GpuUser
) -> None:
    directory = tmp_path / "7"
    directory.mkdir()
    (directory / "comm").write_bytes(name + b"\n")
    (directory / "cgroup").write_text(cgroup)
    (directory / "stat").write_bytes(b"7 (" + name + b") S 5 7 7")
    assert gpu_users(tmp_path).user(7, frozenset({6})) == expected
    assert gpu_users(tmp_path).user(8, frozenset()) is None  # the process is gone


def test_our_mps_daemons_and_their_children_are_not_users(tmp_path: Path) -> None:
    for pid, parent in ((6, 1), (7, 6), (8, 7)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text("nvidia-cuda-mps\n")
        (tmp_path / str(pid) / "cgroup").write_text(IN_A_POD)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (nvidia-cuda-mps) S {parent} 7 7")
    users = gpu_users(tmp_path)._users_of({"GPU-a": [6, 7, 8]})
    assert users == {"GPU-a": [pod_resources.GpuUser(8, "nvidia-cuda-mps", "ml/x")]}


def test_devices_in_the_kubelets_checkpoint_are_in_use_while_their_pod_runs(tmp_path: Path) -> None:
    """While the kubelet is down its API does not answer, and at first it lists no devices. But it already rejects pods
    whose devices are unhealthy.
    """
    entries = [
        {"PodUID": UID, "ContainerName": "a", "ResourceName": PERCENT, "DeviceIDs": {"-1": ["gpu-percent-7"]}},
        {"PodUID": UID, "ContainerName": "b", "ResourceName": PERCENT, "DeviceIDs": {"0": ["gpu-percent-300"]}},
        {"PodUID": "gone", "ContainerName": "a", "ResourceName": PERCENT, "DeviceIDs": {"-1": ["gpu-percent-9"]}},
    ]
    kept = tmp_path / pod_resources.CHECKPOINT_NAME
    kept.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}))
    asked = gpu_users(tmp_path, kept)
    assert "does not report" in asyncio.run(asked.refresh())
    assert asked.allocated_ids == {PERCENT: {"gpu-percent-7", "gpu-percent-300"}}


async def test_a_device_is_free_once_the_kubelet_no_longer_lists_it(short_path: Path) -> None:
    """Without this, a pod that ended early would delay the mode change of its GPU by 30 seconds."""
    (short_path / "plugins").mkdir()
    kubelet = Kubelet(short_path / "plugins")
    await kubelet.start()
    now = 100.0
    asked = GpuUsers(
        SimpleNamespace(nvml=None),  # type: ignore[arg-type]
        pod_resources_socket=kubelet.holdings,
        pods=tuple,
        proc=short_path,
        identify=socket_server.by_cgroup(short_path),
        own_pids=frozenset,
        clock=lambda: now,
    )
    try:
        asked.record_allocation("nvidia.com/gpu", ["GPU-a"])
        now += 1
        assert await asked.refresh() == ""  # the pod is not admitted yet
        assert asked.in_use() == {"GPU-a"}
        kubelet.pods["x"] = ("nvidia.com/gpu", ["GPU-a"])
        now += 1
        await asked.refresh()
        assert asked.in_use() == {"GPU-a"}
        del kubelet.pods["x"]
        now += 1
        await asked.refresh()
        assert asked.in_use() == frozenset()
        # A list from before an allocation says nothing about the container that got the device after it.
        kubelet.pods["y"] = ("nvidia.com/gpu", ["GPU-a"])
        asking = asyncio.create_task(asked.refresh())
        await asyncio.sleep(0)
        now += 1
        asked.record_allocation("nvidia.com/gpu", ["GPU-a"])
        await asking
        kubelet.pods.clear()
        await asked.refresh()
        assert asked.in_use() == {"GPU-a"}
        now += JUST_GIVEN_SECONDS + 1
        assert asked.in_use() == frozenset()
    finally:
        await kubelet.holder.stop(None)
        await kubelet.server.stop(None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"Data": {"PodDeviceEntries": [7]}}', '{"Data": {"PodDeviceEntries": null}}']
)
def test_a_checkpoint_in_another_format_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / pod_resources.CHECKPOINT_NAME).write_text(text)
    assert pod_resources.read_checkpoint(tmp_path / pod_resources.CHECKPOINT_NAME) == {}
    assert pod_resources.read_checkpoint(tmp_path / "none") == {}
