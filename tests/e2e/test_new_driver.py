"""A new driver on a real node: it keeps the memory limits of programs without the library, and a killed MPS client
does not wedge its server.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import contract
from gpushare.gpunode import MemoryEnforcement
from lab import access, gpushare, lab_layout
from lab.runtime import create
from tests import cgroups
from tests.builders import GIB
from tests.e2e.isolation_node import PROGRAMS, Node, configured, node
from tests.e2e.observation import eventually
from tests.e2e.test_life_of_a_pod import sleeper

__all__ = ["configured", "node"]  # fixtures
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

COMPONENT = gpushare.REPOSITORY / "config/components/driver-memory/kustomization.yaml"
SYSTEM = f"namespaces/{contract.SYSTEM_NAMESPACE}"
DAEMON_SET = f"/apis/apps/v1/{SYSTEM}/daemonsets/{gpushare.AGENT}"
CGROUPS = Path("/sys/fs/cgroup")
PARTS = ("cuda", "image", "state", "time")  # of the simulated driver, for a static program
DONE, OUT_OF_MEMORY = "0", "2"
STRAY = {"unlimited", "memory-limited"}


class NewDriver:
    """The node with a driver that keeps memory limits, and the component `driver-memory`."""

    def __init__(self, where: lab_layout.Layout, lab: access.Access) -> None:
        self._where, self._lab = where, lab
        (self._node,) = where.nodes
        self._link = where.gpus(self._node) / create.CGROUPS
        self._before = lab.read(DAEMON_SET)["spec"]["template"]

    def install(self, directory: Path) -> None:
        hierarchy = cgroups.hierarchy()
        text = gpushare.NODE_DESCRIPTION.read_text().replace(gpushare.DRIVER_VERSION, "620.10").replace("12.4", "13.6")
        (directory / "node.ini").write_text(text)
        self._link.symlink_to(hierarchy)
        document = yaml.safe_load(COMPONENT.read_text())
        changes = yaml.safe_load(next(patch["patch"] for patch in document["patches"] if "DaemonSet" in str(patch)))
        for change in changes:
            if change["value"] == "--cgroup-root=/host/cgroup-limits":
                change["value"] += f"/{hierarchy.relative_to(CGROUPS)}"
        self._replace(directory / "node.ini", changes)

    def remove(self) -> None:
        self._link.unlink(missing_ok=True)
        self._replace(gpushare.NODE_DESCRIPTION, [{"op": "replace", "path": "/spec/template", "value": self._before}])

    def _replace(self, description: Path, changes: list[dict[str, Any]]) -> None:
        """Install the driver, and replace the pods that use it."""
        gpus = self._where.gpus(self._node)
        for file in (*gpus.glob("gpu*"), gpus / create.RENDEZVOUS):
            file.unlink()
        command: list[str | Path] = [gpushare.DRIVER / "simgpu", "create", "--node", self._node.name, description, gpus]
        subprocess.run(command, check=True, capture_output=True)
        self._lab.patch(DAEMON_SET, changes)
        (keeper,) = gpushare.pods(self._lab, "mps")
        self._lab.delete(f"/api/v1/{SYSTEM}/pods/{keeper['metadata']['name']}")
        gpushare.ready(self._where, self._lab)


@pytest.fixture
def new_driver(node: Node, installed: lab_layout.Layout, lab: access.Access) -> Iterator[NewDriver]:
    made = NewDriver(installed, lab)
    yield made
    node.delete("--all")
    made.remove()


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A static program, in base64."""
    path = tmp_path_factory.mktemp("static") / "static"
    objects = [str(file) for part in PARTS for file in (gpushare.DRIVER / "objects" / part).rglob("*.c.o")]
    source = str(PROGRAMS / "static.c")
    subprocess.run(["gcc", "-static", "-pthread", "-s", "-o", str(path), source, *objects], check=True)
    return base64.b64encode(path.read_bytes()).decode()


class Escapes:
    """A pod whose programs lack the library, with 4 GiB of the last GPU."""

    def __init__(self, node: Node, static: str, name: str) -> None:
        self._node, self._name = node, name
        node.user.apply(sleeper(name, request="0.25", memory="4Gi", uuid=node.uuids[3]))
        node.user.running(name)
        self._shell("base64 -d > /tmp/static && chmod +x /tmp/static", text=static)

    def _shell(self, script: str, text: str | None = None) -> str:
        return self._node.user.kubectl("exec", "--stdin", self._name, "--", "sh", "-c", script, text=text)

    def in_static_program(self, *sizes: int) -> list[str]:
        """Return CUDA's results for allocations of these sizes; the program stays."""
        self._shell(f"/tmp/static {' '.join(map(str, sizes))} > /tmp/said 2>&1 &")

        def said() -> list[str] | None:
            lines = self._shell("cat /tmp/said").splitlines()
            return [line.split()[1] for line in lines] if len(lines) == len(sizes) else None

        return eventually(said, what="a static program that has allocated")

    def in_another_root(self, size: int) -> str:
        """Return the output of the probe in another root directory, as of bubblewrap."""
        mounts = " && ".join(f"mkdir {name} && mount --rbind /{name} {name}" for name in ("usr", "dev", "proc"))
        links = " && ".join(f"ln -s usr/{name} {name}" for name in ("lib", "lib64", "bin"))
        inside = (
            f"mount -t tmpfs none /mnt && cd /mnt && {mounts} && {links} && chroot . gpushare-probe --allocate {size}"
        )
        return self._shell(f"mkdir -p /mnt; unshare -r -m sh -c '{inside}' || true")

    def audited(self) -> tuple[str, str, int | None]:
        """Return what the audit says: the static program's state, and what keeps the share's memory limit."""
        access_, node = self._node.user.access, self._node.node

        def is_found() -> bool:
            page = json.loads(gpushare.agent_page(access_, node, contract.AUDIT_PATH))
            processes = [process for gpu in page["gpus"] for process in gpu["processes"]]
            return any(process["pod"] == self._name and process["state"] in STRAY for process in processes)

        eventually(is_found, what="named by the agent")  # which costs less to ask than `kubectl gpushare audit`
        audit = self._node.audit()
        (stray,) = [stray for stray in audit["processes"] if stray["pod"]["name"] == self._name]
        (share,) = [item for item in audit["items"] if item["pod"]["name"] == self._name]
        return stray["state"], share["memoryEnforcement"], share["driverBytes"]


def test_a_new_driver_keeps_memory_limits_and_survives_a_killed_client(
    node: Node, new_driver: NewDriver, static: str, tmp_path: Path
) -> None:
    limit = 4 * GIB
    before = Escapes(node, static, "before")
    assert before.in_static_program(limit, 2 * GIB) == [DONE, DONE]
    assert f"allocated {limit + 1}" in before.in_another_root(limit + 1)
    assert before.audited() == ("unlimited", "none", None)
    node.delete("before")

    new_driver.install(tmp_path)
    by_driver = MemoryEnforcement.DRIVER
    eventually(lambda: node.user.gpunode().gpus[3].memory_enforcement is by_driver, what="published")
    after = Escapes(node, static, "after")
    assert after.in_static_program(limit + 1, limit, 1) == [OUT_OF_MEMORY, DONE, OUT_OF_MEMORY]
    assert "refused 1: CUDA_ERROR_OUT_OF_MEMORY" in after.in_another_root(1)
    assert after.audited() == ("memory-limited", "driver", limit)

    clients = {"victim": "insists", "neighbour": "works"}
    for name, verb in clients.items():
        node.create(name, verb, 0, isolation="mps", request="25%", limit="25%")
    for name in clients:
        node.user.running(name)
    node.goes_on("victim", "neighbour")
    node.delete_by_force("victim")
    node.goes_on("neighbour")
