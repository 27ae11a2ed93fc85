"""The lab's node with a configuration that allows kinds of isolation, and a user's pods on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.mps.steps import DaemonFiles
from gpushare import contract
from gpushare.allocation import Isolation
from lab import access, gpushare, lab_errors, lab_layout, node_cgroup, node_mounts
from tests import builders
from tests.e2e.observation import Observer, annotation, eventually

PROGRAMS, MOUNTED = Path(__file__).parent / "programs", "/programs"
PROGRAM = PROGRAMS / "isolated.py"
CONFIG = """
version: v1
flags: {plugin: {deviceListStrategy: cdi-annotations}}
sharing:
  fractional:
    resources:
    - {name: nvidia.com/gpu, devices: [0, 1, 2], isolations: [arbiter, mps, none]}
    - {name: nvidia.com/gpu, devices: [3]}
"""
DEFAULT = "version: v1\nsharing: {fractional: {resources: [{name: nvidia.com/gpu}]}}\n"
ALLOWED = (Isolation.ARBITER, Isolation.MPS, Isolation.NONE)


class Node:
    """The lab's node, which allows kinds of isolation on all GPUs but the last, and a user's pods on it."""

    def __init__(self, where: lab_layout.Layout, user: Observer) -> None:
        self.where, self.user = where, user
        (self.node,) = where.nodes
        self.uuids = [gpu.uuid for gpu in user.gpunode().gpus]
        data = {PROGRAM.name: PROGRAM.read_text()}
        user.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "data": data})

    def create(self, name: str, verb: str, gpu: int | None, **annotations: str) -> None:
        """Create a pod of this verb of `isolated.py`, on a GPU. Its process is the container's first one."""
        uuid = {} if gpu is None else {"uuid": self.uuids[gpu]}
        asked: Any = {"request": "0.25", "memory": "4Gi", **uuid, **annotations}
        self.apply(name, verb, asked)

    def apply(
        self, name: str, verb: str, annotations: Mapping[str, Any], limits: Mapping[str, str] | None = None
    ) -> None:
        """Create a pod with these annotations and resource limits."""
        volumes = [{"name": "programs", "configMap": {"name": "programs"}}]
        spec: Any = {"terminationGracePeriodSeconds": 1, "volumes": volumes}
        manifest = builders.pod(name, namespace=self.user.namespace, spec=spec, **annotations)
        (container,) = manifest["spec"]["containers"]
        container["resources"] = {"limits": dict(limits or {})}
        container |= {"image": gpushare.built_images().agent.name, "imagePullPolicy": "Never"}
        container |= {"command": self.program(verb), "volumeMounts": [{"name": "programs", "mountPath": MOUNTED}]}
        self.user.apply(manifest)

    def start(self, name: str, verb: str, gpu: int | None, **annotations: str) -> None:
        self.create(name, verb, gpu, **annotations)
        self.user.running(name)

    def client(self, name: str, verb: str, gpu: int, percent: int = 25) -> None:
        self.clients((name, verb, gpu, percent))

    def clients(self, *asked: tuple[str, str, int, int]) -> None:
        """Start clients of MPS daemons: names, verbs, GPUs and percent of these."""
        for name, verb, gpu, percent in asked:
            part = f"{percent}%"
            self.create(name, verb, gpu, isolation="mps", request=part, limit=part)
        for name, *_ in asked:
            self.user.running(name)

    def program(self, verb: str) -> list[str]:
        return ["python", f"{MOUNTED}/{PROGRAM.name}", verb]

    def run(self, name: str, verb: str, *environment: str) -> str:
        """Run a verb in a pod; return what it prints, or how it fails. environment: its only variables."""
        try:
            return self.user.inside(name, *self.program(verb), *environment).strip()
        except lab_errors.LabError as error:
            return str(error)

    def done(self, name: str) -> int:
        """Return how many kernels of a pod that works have ended, since its container started."""
        lines = self.user.logs(name).splitlines()  # those of the library too
        return max((int(line) for line in lines if line.isdigit()), default=0)

    def goes_on(self, *names: str) -> None:
        """Wait until each of these pods has run another kernel."""
        for name, before in {name: self.done(name) for name in names}.items():
            eventually(lambda name=name, before=before: self.done(name) > before, what=f"{name} at work")  # type: ignore[misc]

    def reason(self, name: str) -> str:
        return eventually(lambda: annotation(self.user.pod(name) or {"metadata": {}}, contract.REASON), what="a reason")

    def daemon(self, gpu: int) -> int | None:
        """Return the PID of a GPU's MPS daemon; None if there is none."""
        root = node_mounts.inside_directory(self.where, self.node, "/run/gpushare") / "mps"
        with contextlib.suppress(OSError, ValueError):
            return int(DaemonFiles(root, self.uuids[gpu]).pid_file.read_text())
        return None

    def server(self, gpu: int) -> int:
        """Return the PID of its server."""
        daemon = self.daemon(gpu)
        (server,) = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
        return int(server)

    def restarts(self, name: str) -> int:
        return int((self.user.pod(name) or {})["status"]["containerStatuses"][0]["restartCount"])

    def audit(self) -> Any:
        run = self.user.plugin_run("audit", "--output=json", check=False)
        return json.loads(run.stdout)

    def limits_of(self, *names: str) -> list[str]:
        """Return what the audit says of the pods' shares."""
        items = {item["pod"]["name"]: item["limits"] for item in self.audit()["items"]}
        return [items[name] for name in names]

    def isolations(self, gpu: int) -> tuple[Isolation, ...]:
        return self.user.gpunode().gpus[gpu].isolations

    def condition(self, kind: str) -> tuple[str, str]:
        (found,) = [condition for condition in self.user.gpunode().conditions if condition.type == kind]
        return found.status, found.message

    def delete_by_force(self, name: str) -> None:
        """Delete a pod by force, and wait until the kubelet has killed it."""
        uid = (self.user.pod(name) or {})["metadata"]["uid"]
        self.user.access.delete(f"/api/v1/namespaces/{self.user.namespace}/pods/{name}")
        eventually(lambda: not node_cgroup.members_below(self.where.cgroup, f"pod{uid}"), what=f"{name} killed")

    def delete(self, *names: str) -> None:
        self.user.delete("pods", *names)


@contextlib.contextmanager
def configuration(lab: access.Access, node: str, text: str) -> Iterator[None]:
    """Give the node this configuration, and the default one at the end."""
    metadata = {"name": contract.CONFIG_MAP, "namespace": contract.SYSTEM_NAMESPACE}
    data = {"default": DEFAULT, "own": text}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    lab.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=json.dumps(document))
    lab.kubectl("label", "node", node, "--overwrite", f"{contract.NODE_CONFIG_LABEL}=own")
    yield
    lab.kubectl("label", "node", node, f"{contract.NODE_CONFIG_LABEL}-")


@pytest.fixture(scope="module")
def configured(installed: lab_layout.Layout, lab: access.Access) -> Iterator[None]:
    """The node's configuration, which allows kinds of isolation."""
    (node,) = installed.nodes
    viewer = Observer(lab, "default")
    with configuration(lab, node.name, CONFIG):
        eventually(lambda: viewer.gpunode().gpus[0].isolations == ALLOWED, what="offered by the GPUNode")
        yield


@pytest.fixture
def node(configured: None, user: Observer, installed: lab_layout.Layout) -> Iterator[Node]:
    yield Node(installed, user)
    user.delete("pods", "--all")
    user.ledger_is_empty()
