"""`--deny-unregistered` on a node: in a pod with a share, only registered processes open the driver's device file.

The lab's GPUs are plain files, so the driver gets a device file with the number of `/dev/nvidiactl`, which the
container runtime gives to every container with a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.denial import program
from gpushare import contract
from gpushare.gpunode import Condition
from lab import access, gpushare, lab_layout, node_mounts
from lab.runtime import create
from tests.deviceplugin.denial import kernel_node
from tests.e2e import denied
from tests.e2e.observation import Observer, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]  # agents are replaced four times

COMPONENT = gpushare.REPOSITORY / "config/components/deny-unregistered/kustomization.yaml"
DAEMON_SET = f"/apis/apps/v1/namespaces/{contract.SYSTEM_NAMESPACE}/daemonsets/{gpushare.AGENT}"
CGROUPS = Path("/sys/fs/cgroup")
CONTROL = f"{create.DEVICE_DIRECTORY}/{create.CONTROL}"
PROGRAM, MOUNTED = Path(__file__).with_name("denied.py"), "/programs"
# Output of `registers` without and with denial.
FREE, HELD = "open cuda open open", "denied cuda open denied"
STATIC_MAY = re.compile("^$|No such device or address")  # allowed: the file has no driver
NO_BPF = "no bpf file system is mounted at /sys/fs/bpf"


class Node:
    """The lab's node with the driver's device file; `bpf` is the path that the agent uses as /sys/fs/bpf."""

    def __init__(self, where: lab_layout.Layout, administrator: access.Access) -> None:
        self._where, self._administrator = where, administrator
        self._hierarchy = kernel_node.hierarchy()
        (self._node,) = where.nodes
        self._control = where.gpus(self._node) / create.CONTROL
        self._bpf = where.node_directory(self._node) / "bpf"
        os.mknod(self._control, 0o20666, os.makedev(program.DRIVERS_MAJOR, 255))
        self._bpf.mkdir()
        self._before = administrator.read(DAEMON_SET)["spec"]["template"]
        self._mounted = False

    def apply_component(self) -> None:
        """Apply the component, set up for this kernel's cgroup v2 hierarchy, which may exist next to those of v1."""
        document = yaml.safe_load(COMPONENT.read_text())
        changes = yaml.safe_load(next(patch["patch"] for patch in document["patches"] if "DaemonSet" in str(patch)))
        for change in changes:
            if change["value"] == "--cgroup-root=/host/cgroup":
                change["value"] = f"--cgroup-root=/host/cgroup/{self._hierarchy.relative_to(CGROUPS)}"
            elif isinstance(change["value"], dict) and change["value"].get("hostPath", {}).get("path") == "/sys/fs/bpf":
                change["value"]["hostPath"]["path"] = str(self._bpf)
        self._change(changes)

    def mount_bpf(self) -> None:
        """Mount bpffs as systemd does, visible to the node's processes only."""
        self._inside("mount", "-t", "bpf", "bpf", str(self._bpf))
        self._mounted = True
        self._change([{"op": "add", "path": "/spec/template/metadata/annotations", "value": {"mounted": "bpf"}}])

    def end(self) -> None:
        self._control.unlink()
        self._change([{"op": "replace", "path": "/spec/template", "value": self._before}])
        if self._mounted:
            self._inside("umount", "--lazy", str(self._bpf))
        self._bpf.rmdir()

    def without_agent(self) -> Any:
        return gpushare.without_agent(self._where, self._node, self._administrator)

    def _inside(self, *command: str) -> None:
        subprocess.run(node_mounts.inside(self._where, self._node, command), check=True)

    def _change(self, changes: list[dict[str, Any]]) -> None:
        self._administrator.patch(DAEMON_SET, changes)
        gpushare.ready(self._where, self._administrator)


@pytest.fixture
def node(installed: lab_layout.Layout, lab: access.Access) -> Iterator[Node]:
    made = Node(installed, lab)
    yield made
    made.end()


class Pods:
    """Programs in pods, and the kernel's answers to them."""

    def __init__(self, user: Observer) -> None:
        self._user = user
        data = {PROGRAM.name: PROGRAM.read_text()}
        user.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "data": data})

    def create(self, name: str, **annotations: str) -> None:
        """Create a pod with the agent's image, which has a Python interpreter."""
        manifest: dict[str, Any] = sleeper(name, **annotations)
        (container,) = manifest["spec"]["containers"]
        container |= {"image": gpushare.built_images().agent.name, "imagePullPolicy": "Never"}
        container["volumeMounts"] = [{"name": "programs", "mountPath": MOUNTED}]
        manifest["spec"]["volumes"] = [{"name": "programs", "configMap": {"name": "programs"}}]
        container["command"] = ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]
        if not annotations:
            container["env"] = [{"name": contract.ENV_VISIBLE_DEVICES, "value": "all"}]
        self._user.apply(manifest)

    def of_static(self, name: str) -> str:
        """Return the output of busybox in the lab's image, which has no dynamic loader."""
        said = self._user.inside(name, "sh", "-c", f"(exec 3<>{CONTROL}) 2>&1 || true")
        return "denied" if "Operation not permitted" in said else "open" if STATIC_MAY.search(said) else said

    def of(self, name: str, verb: str) -> str:
        return " ".join(self._user.inside(name, "python", f"{MOUNTED}/{PROGRAM.name}", verb, CONTROL).split())

    def said(self, name: str) -> list[str]:
        return self._user.inside(name, "python", "-c", f"print(open({denied.SAID!r}).read())").split()


def test_unregistered_processes_get_no_gpu_in_a_pod_with_a_share(node: Node, user: Observer) -> None:
    pods = Pods(user)
    user.apply(sleeper("static", request="0.1"))
    pods.create("python", request="0.1")
    pods.create("beside")
    for name in ("static", "python", "beside"):
        user.running(name)

    def said(status: str) -> Condition | None:
        conditions = [
            condition
            for condition in user.gpunode().conditions
            if condition.type == contract.CONDITION_UNREGISTERED_DENIED
        ]
        return next((condition for condition in conditions if condition.status == status), None)

    def no_pod_is_denied() -> None:
        assert pods.of_static("static") == "open"
        assert pods.of("python", "registers") == FREE
        assert pods.of("python", "past") == "open cuda"

    def unregistered_is_denied(python: str) -> None:
        assert pods.of_static("static") == "denied"
        assert pods.of(python, "registers") == HELD
        assert pods.of(python, "past") == "denied no-cuda"
        assert pods.of("beside", "registers") == FREE

    no_pod_is_denied()
    assert not said("True")
    assert not said("False")
    node.apply_component()
    cannot = eventually(lambda: said("False"), what="told, by the GPUNode, that it is not possible")
    assert (cannot.reason, NO_BPF in cannot.message) == ("NotPossible", True), cannot
    no_pod_is_denied()

    node.mount_bpf()
    eventually(lambda: said("True"), what="denied, by the GPUNode")
    pods.create("new", request="0.1")
    user.running("new")
    for name in ("python", "new"):  # one that was already running, and a new one
        unregistered_is_denied(name)
    pods.of("new", "stays")
    eventually(lambda: len(pods.said("new")) > 1, what="a registered process")
    with node.without_agent():
        assert pods.of_static("static") == "denied"
    unregistered_is_denied("new")
    after = len(pods.said("new"))
    eventually(lambda: len(pods.said("new")) > after, what="the one that stays at it")
    assert set(pods.said("new")) == {"cuda", "open"}, "the next agent took from it what it had"
    user.delete("pods", "--all")
    user.ledger_is_empty()
