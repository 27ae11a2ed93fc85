"""`--deny-unregistered` on a node: in a pod with a share only who is registered opens a device file of the driver's.

The lab's GPUs are files, so a device file with the driver's major number is made in the containers. No driver answers
for it: who may open it hears ENXIO, who may not EPERM.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.images import build as images
from deviceplugin.denial import program
from deviceplugin.denial.pods import DENIED
from gpushare import contract
from gpushare.gpunode import Condition
from lab import access, gpushare, layout
from tests.deviceplugin.denial import kernel_node
from tests.e2e.observation import Observer, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab

COMPONENT = gpushare.REPOSITORY / "config/components/deny-unregistered/kustomization.yaml"
DAEMON_SET = (*gpushare.SCOPE, f"daemonset/{gpushare.AGENT}")
CGROUPS = Path("/sys/fs/cgroup")
DEVICE = "/tmp/nvidiactl"
MAKE = f"mknod -m 666 {DEVICE} c {program.DRIVERS_MAJOR} 255"
OPEN = f"exec 3<>{DEVICE}"
# Before it registers, after, and as another program with the same pid.
REGISTERS = f"""
import ctypes, errno, os, sys
def opened():
    try:
        os.open({DEVICE!r}, os.O_RDWR)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
opened()
if len(sys.argv) == 1:
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    opened()
    os.execv(sys.executable, [*sys.orig_argv, "again"])
"""


@pytest.fixture
def denying(installed: layout.Layout, lab: access.Access, tmp_path: Path) -> Iterator[None]:
    """The agent with the component, for this kernel's hierarchy of cgroup v2 and a bpf file system of its own."""
    hierarchy = kernel_node.hierarchy()
    if not (CGROUPS / "devices").is_dir():
        pytest.skip("the lab gives containers no device of the driver's, and beside cgroup v1 alone a test can")
    kept = installed.node_directory(installed.nodes[0]) / "bpf"
    kept.mkdir()
    if ctypes.CDLL(None, use_errno=True).mount(b"bpf", bytes(kept), b"bpf", 0, None):
        kept.rmdir()
        pytest.skip(f"no bpf file system can be mounted here: {os.strerror(ctypes.get_errno())}")
    before = json.loads(lab.kubectl("get", *DAEMON_SET, "-o", "json"))["spec"]["template"]
    text = next(one["patch"] for one in yaml.safe_load(COMPONENT.read_text())["patches"] if "DaemonSet" in str(one))
    changes = yaml.safe_load(text)
    for change in changes:
        if change["value"] == "--cgroup-root=/host/cgroup":
            change["value"] = f"--cgroup-root=/host/cgroup/{hierarchy.relative_to(CGROUPS)}"
        elif isinstance(change["value"], dict) and change["value"].get("hostPath", {}).get("path") == "/sys/fs/bpf":
            change["value"]["hostPath"]["path"] = str(kept)
    try:
        change_agent(installed, lab, changes)
        yield
    finally:
        change_agent(installed, lab, [{"op": "replace", "path": "/spec/template", "value": before}])
        subprocess.run(["umount", "--lazy", kept], check=True)


def change_agent(where: layout.Layout, lab: access.Access, changes: list[dict[str, Any]]) -> None:
    lab.kubectl("patch", *DAEMON_SET, "--type=json", f"--patch={json.dumps(changes)}")
    gpushare.ready(where, lab)


def let_open(where: layout.Layout, pod: dict[str, Any]) -> None:
    """As NVIDIA's runtime does: the container may open the driver's device files."""
    (status,) = pod["status"]["containerStatuses"]
    container = status["containerID"].rpartition("/")[2]
    (found,) = (CGROUPS / "devices" / where.cgroup).rglob(f"{container}/devices.allow")
    found.write_text(f"c {program.DRIVERS_MAJOR}:* rwm")


def test_who_is_not_registered_gets_no_gpu_in_a_pod_with_a_share(
    denying: None, user: Observer, installed: layout.Layout
) -> None:
    def said() -> Condition | None:
        return user.gpunode().condition(contract.CONDITION_UNREGISTERED_DENIED)

    found = eventually(said, what="said whether it is denied")
    assert (found.status, found.message) == ("True", DENIED), found
    shares = {"static": sleeper("static", request="0.1"), "registers": sleeper("registers", request="0.1")}
    (container,) = shares["registers"]["spec"]["containers"]  # type: ignore[index]
    container |= {"image": images.ensure().agent.name, "imagePullPolicy": "Never"}
    container["command"] = ["python", "-c", "import signal; signal.pause()"]
    for manifest in (*shares.values(), sleeper("beside")):
        user.apply(manifest)
    for name in (*shares, "beside"):
        let_open(installed, user.running(name))

    def opened(name: str) -> str:
        return user.inside(name, "sh", "-c", f"{MAKE}; ({OPEN}) 2>&1 || true")

    assert "No such device or address" in opened("beside")
    assert "Operation not permitted" in opened("static")
    make = f"import os; os.mknod({DEVICE!r}, 0o20666, os.makedev({program.DRIVERS_MAJOR}, 255))"
    user.inside("registers", "python", "-c", make)
    assert user.inside("registers", "python", "-c", REGISTERS).split() == ["EPERM", "ENXIO", "EPERM"]
    user.delete("pods", "--all")
    user.ledger_is_empty()
