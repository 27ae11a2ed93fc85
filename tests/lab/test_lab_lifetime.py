"""A lab survives killed daemons, keeps its nodes, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import cluster, daemon_process, lab_layout, network, node_cgroup
from tests.lab.test_lab_nodes import READY, pod

pytestmark = pytest.mark.lab(own=True)
PODS = "/api/v1/namespaces/default/pods"


def eventually(what: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_killed_daemons_recover_and_nothing_is_left_at_the_end() -> None:
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, owner=os.getpid())
            made = lab_layout.load(directory)
            administrator.create(PODS, pod("survivor", "sleep infinity"))
            administrator.kubectl("wait", READY, "pod/survivor", "--timeout=90s")
            started = administrator.read(f"{PODS}/survivor")["status"]["containerStatuses"]

            for name in (
                "lab-node-0.kubelet",
                "lab-node-0.containerd",
                "lab-node-0.namespace",
                "kube-scheduler",
                "etcd",
            ):
                kill(name, made)
            assert cluster.up(directory) == administrator
            administrator.create(PODS, pod("later"))
            administrator.kubectl("wait", READY, "pod/later", "--timeout=90s")
            assert administrator.execute("default", "survivor", "hostname") == "survivor\n"
            assert started == administrator.read(f"{PODS}/survivor")["status"]["containerStatuses"]

            # The worst case: no daemon is left to clean up after the others, and the pods still run.
            for name in ("lab-node-0.kubelet", "lab-node-0.containerd", "kube-apiserver"):
                kill(name, made)
        finally:
            cluster.down(directory)
        assert not directory.exists()
        assert remains(made) == []


def kill(name: str, lab: lab_layout.Layout) -> None:
    pid = daemon_process.pid_of(name, lab.processes)
    assert pid is not None, name
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: daemon_process.pid_of(name, lab.processes) is None, 5.0)


def remains(lab: lab_layout.Layout) -> list[str]:
    """Look for anything left of a lab: processes, sockets, mounts, network devices, cgroups."""
    remnants = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal() and daemon_process.start_time(int(directory.name)) is not None:
            remnants += [
                f"process {directory.name}" for _ in [0] if str(lab.directory).encode() in command_line(directory)
            ]
    remnants += [line for line in Path("/proc/net/unix").read_text().splitlines() if str(lab.directory) in line]
    remnants += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(lab.directory) in line]
    # Without glob, which fails if another process's cgroup disappears during the search.
    folders = [(top, names) for root in node_cgroup.hierarchies() for top, names, _ in os.walk(root)]
    remnants += [f"{top}/{lab.cgroup}" for top, names in folders if lab.cgroup in names]
    remnants += [f"network device {lab.bridge}" for _ in [0] if network.exists(lab.bridge)]
    remnants += [
        f"address {line}"
        for line in Path("/proc/net/fib_trie").read_text().splitlines()
        if f"{lab.pod_network}." in line
    ]
    return remnants


def command_line(directory: Path) -> bytes:
    try:
        return (directory / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
