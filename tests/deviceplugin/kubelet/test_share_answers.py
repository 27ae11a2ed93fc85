"""Devices that a starting kubelet counts for ended pods."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from deviceplugin.kubelet import plugin_registration, share_answers
from deviceplugin.state import pod_resources
from gpushare import contract

PERCENT = contract.RESOURCE_PERCENT


@pytest.fixture
def directory(short_path: Path) -> Path:
    """Create the directory of a kubelet that has just started, with devices of two pods."""
    entries = [
        {"PodUID": uid, "ContainerName": container, "ResourceName": resource, "DeviceIDs": {"-1": ids}}
        for uid, container, resource, ids in (
            ("living", "a", PERCENT, ["gpu-percent-1", "gpu-percent-2"]),
            ("over", "a", PERCENT, ["gpu-percent-3"]),
            ("over", "b", PERCENT, ["gpu-percent-4", "gpu-percent-5"]),
            ("over", "b", contract.RESOURCE_IDLE, ["gpu-idle-0"]),
        )
    ]
    text = json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})
    (short_path / pod_resources.CHECKPOINT_NAME).write_text(text)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_path / plugin_registration.KUBELET_SOCKET))
    return short_path


def test_counts_devices_of_ended_pods(directory: Path) -> None:
    left = share_answers.StaleAllocations(directory, living=lambda: {"living"})
    assert left.count(PERCENT) == 3
    assert left.count(contract.RESOURCE_IDLE) == 1
    assert left.count(contract.RESOURCE_MEMORY) == 0
    assert share_answers.StaleAllocations(directory, living=frozenset).count(PERCENT) == 5
    (directory / pod_resources.CHECKPOINT_NAME).unlink()
    assert left.count(PERCENT) == 0


def test_counts_only_in_the_kubelets_first_minute(directory: Path) -> None:
    made = (directory / plugin_registration.KUBELET_SOCKET).stat().st_ctime

    def count(now: float) -> int | None:
        return share_answers.StaleAllocations(directory, living=frozenset, clock=lambda: now).count(PERCENT)

    assert count(made + share_answers.KUBELET_START_SECONDS - 1) == 5
    assert count(made + share_answers.KUBELET_START_SECONDS + 1) is None
    assert count(made - 2 * share_answers.KUBELET_START_SECONDS) is None  # the clock was set back
    (directory / plugin_registration.KUBELET_SOCKET).unlink()
    assert count(made) is None  # there is no kubelet
