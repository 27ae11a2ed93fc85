"""The agent and the lab's real kubelet."""

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


@pytest.fixture(scope="module")
def installed(lab: access.Access) -> lab_layout.Layout:
    where = lab_layout.load(lab.kubeconfig.parents[1])
    gpushare.install(where, lab)
    return where


def node(lab: access.Access, installed: lab_layout.Layout, amounts: str) -> dict[str, str]:
    """Our resources in the node's `capacity` or `allocatable`."""
    status = lab.read(f"/api/v1/nodes/{installed.nodes[0].name}")["status"]
    return {name: str(amount) for name, amount in status[amounts].items() if name.startswith(contract.PREFIX)}


# For its first minute a kubelet is told of devices in place of those that pods left behind while it was away, which may be
# the pods of a test before; and for half a minute more they are there, as unhealthy.
OFFERED_SECONDS = 180.0


def eventually(condition: Callable[[], bool], seconds: float = OFFERED_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def kill(name: str, installed: lab_layout.Layout) -> None:
    """SIGKILL, by the recorded pid."""
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


def test_the_kubelet_is_told_of_a_lost_gpu_and_of_its_return(lab: access.Access, installed: lab_layout.Layout) -> None:
    gpus = installed.gpus(installed.nodes[0])
    simulated.command("fail", gpus, "3", "lost")
    try:
        eventually(lambda: node(lab, installed, "allocatable")[contract.RESOURCE_PERCENT] == "300")
        eventually(lambda: node(lab, installed, "allocatable")[contract.RESOURCE_MEMORY] == str(120 << 30))
        assert node(lab, installed, "capacity")[contract.RESOURCE_PERCENT] == "400"
    finally:
        simulated.command("heal", gpus, "3")
    eventually(lambda: node(lab, installed, "allocatable") == WHOLE_NODE)


def test_after_a_kubelet_restart_everything_is_offered_again(lab: access.Access, installed: lab_layout.Layout) -> None:
    kill(f"{installed.nodes[0].name}.kubelet", installed)
    cluster.up(installed.directory)
    eventually(lambda: node(lab, installed, "allocatable") == WHOLE_NODE)


def test_after_an_agent_restart_everything_is_offered_again(lab: access.Access, installed: lab_layout.Layout) -> None:
    with gpushare.without_agent(installed, installed.nodes[0], lab):
        # The kubelet takes a plugin that is gone for one whose devices are all ill.
        eventually(lambda: node(lab, installed, "allocatable")[contract.RESOURCE_PERCENT] == "0")
    eventually(lambda: node(lab, installed, "allocatable") == WHOLE_NODE)
