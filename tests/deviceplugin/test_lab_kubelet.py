"""The agent with the lab's real kubelet."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from gpushare import contract
from lab import access, cluster, daemon_process, gpushare, lab_layout
from tests.deviceplugin import simulated

pytestmark = pytest.mark.lab


def node(lab: access.Access, installed: lab_layout.Layout, amounts: str) -> dict[str, str]:
    """Return gpushare's resources in the node's `capacity` or `allocatable`."""
    status = lab.read(f"/api/v1/nodes/{installed.nodes[0].name}")["status"]
    return {name: str(amount) for name, amount in status[amounts].items() if name.startswith(contract.PREFIX)}


# In a kubelet's first minute the agent advertises replacements for devices that pods left behind while the kubelet was
# down, maybe pods of an earlier test. For another half minute these devices stay listed as unhealthy.
OFFERED_SECONDS = 180.0


def eventually(condition: Callable[[], bool], seconds: float = OFFERED_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def kill(name: str, installed: lab_layout.Layout) -> None:
    """Send SIGKILL to the recorded PID."""
    pid = daemon_process.pid_of(name, installed.processes)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon_process.pid_of(name, installed.processes) is None)


WHOLE_NODE = {
    contract.RESOURCE_PERCENT: "400",
    contract.RESOURCE_IDLE: str(4 * contract.IDLE_SHARES_PER_GPU),
    contract.RESOURCE_MEMORY: str(160 << 30),
}


def test_the_node_offers_all_its_gpus(lab: access.Access, installed: lab_layout.Layout) -> None:
    for amounts in ("capacity", "allocatable"):
        eventually(lambda amounts=amounts: node(lab, installed, amounts) == WHOLE_NODE)  # type: ignore[misc]


def test_the_kubelet_sees_a_lost_gpu_and_its_recovery(lab: access.Access, installed: lab_layout.Layout) -> None:
    gpus = installed.gpus(installed.nodes[0])
    simulated.command("fail", gpus, "3", "lost")
    try:
        eventually(lambda: node(lab, installed, "allocatable")[contract.RESOURCE_PERCENT] == "300")
        eventually(lambda: node(lab, installed, "allocatable")[contract.RESOURCE_MEMORY] == str(120 << 30))
        eventually(lambda: node(lab, installed, "capacity")[contract.RESOURCE_PERCENT] == "400")
    finally:
        simulated.command("heal", gpus, "3")
    eventually(lambda: node(lab, installed, "allocatable") == WHOLE_NODE)


def test_all_gpus_are_offered_again_after_an_agent_restart(lab: access.Access, installed: lab_layout.Layout) -> None:
    with gpushare.without_agent(installed, installed.nodes[0], lab):
        # For the kubelet, all devices of a missing plugin are unhealthy.
        eventually(lambda: node(lab, installed, "allocatable")[contract.RESOURCE_PERCENT] == "0")
    eventually(lambda: node(lab, installed, "allocatable") == WHOLE_NODE)


def test_all_gpus_are_offered_again_after_a_kubelet_restart(lab: access.Access, installed: lab_layout.Layout) -> None:
    kill(f"{installed.nodes[0].name}.kubelet", installed)
    cluster.up(installed.directory)
    eventually(lambda: node(lab, installed, "allocatable") == WHOLE_NODE)
