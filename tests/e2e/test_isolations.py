"""Kinds of isolation on a real node: shared by MPS and not limited, and whom a fault, a kill and a dead server hurt."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.mps.shares import MAX_SERVER_FAILURES
from deviceplugin.mps.steps import DaemonFiles
from gpushare import contract
from gpushare.allocation import Isolation
from lab import access, gpushare, lab_errors, lab_layout, node_mounts
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

PROGRAM, MOUNTED = Path(__file__).with_name("isolated.py"), "/programs"
CONFIG = """
version: v1
flags: {plugin: {deviceListStrategy: cdi-annotations}}
sharing:
  fractional:
    resources:
    - {name: nvidia.com/gpu, devices: [0, 1, 2], isolations: [arbiter, mps, none]}
    - {name: nvidia.com/gpu, devices: [3]}
"""
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
        manifest: dict[str, Any] = sleeper(name, **{"request": "0.25", "memory": "4Gi", **uuid, **annotations})
        (container,) = manifest["spec"]["containers"]
        container |= {"image": gpushare.built_images().agent.name, "imagePullPolicy": "Never"}
        container |= {"command": self.program(verb), "volumeMounts": [{"name": "programs", "mountPath": MOUNTED}]}
        manifest["spec"]["volumes"] = [{"name": "programs", "configMap": {"name": "programs"}}]
        self.user.apply(manifest)

    def start(self, name: str, verb: str, gpu: int | None, **annotations: str) -> None:
        self.create(name, verb, gpu, **annotations)
        self.user.running(name)

    def client(self, name: str, verb: str, gpu: int, percent: int = 25) -> None:
        part = f"{percent}%"
        self.start(name, verb, gpu, isolation="mps", request=part, limit=part)

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
        lines = self.user.kubectl("logs", name).splitlines()  # those of the library too
        return max((int(line) for line in lines if line.isdigit()), default=0)

    def goes_on(self, *names: str) -> None:
        """Wait until each of these pods has run another kernel."""
        for name, before in {name: self.done(name) for name in names}.items():
            eventually(lambda name=name, before=before: self.done(name) > before, what=f"{name} at work")  # type: ignore[misc]

    def reason(self, name: str) -> str:
        return eventually(lambda: annotation(self.user.pod(name) or {"metadata": {}}, contract.REASON), what="a reason")

    def daemon(self, gpu: int) -> int:
        """Return the PID of a GPU's MPS daemon."""
        root = node_mounts.inside_directory(self.where, self.node, "/run/gpushare") / "mps"
        return int(DaemonFiles(root, self.uuids[gpu]).pid_file.read_text())

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

    def delete(self, *names: str) -> None:
        self.user.delete("pods", *names)


@pytest.fixture(scope="module")
def configured(installed: lab_layout.Layout, lab: access.Access) -> Iterator[None]:
    """The node's configuration, which allows kinds of isolation."""
    (node,) = installed.nodes
    metadata = {"name": contract.CONFIG_MAP, "namespace": contract.SYSTEM_NAMESPACE}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"isolations": CONFIG}}
    lab.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=json.dumps(document))
    lab.kubectl("label", "node", node.name, "--overwrite", f"{contract.NODE_CONFIG_LABEL}=isolations")
    viewer = Observer(lab, "default")
    eventually(lambda: viewer.gpunode().gpus[0].isolations == ALLOWED, what="offered by the GPUNode")
    yield
    lab.kubectl("label", "node", node.name, f"{contract.NODE_CONFIG_LABEL}-")


@pytest.fixture
def node(configured: None, user: Observer, installed: lab_layout.Layout) -> Iterator[Node]:
    yield Node(installed, user)
    user.delete("pods", "--all")
    user.ledger_is_empty()


def test_shares_by_mps_run_side_by_side_within_their_limits(node: Node) -> None:
    node.client("quarter", "works", 0, 25)
    node.client("half", "stays", 0, 50)
    node.goes_on("quarter")
    # By the GPU's clock, whatever the program does to its environment, and while its neighbour works.
    for environment in ((), ("A=1",), ("CUDA_MPS_PIPE_DIRECTORY=/", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")):
        for name, expected_ms in (("quarter", 200), ("half", 100)):
            is_client, took_ms = map(int, node.run(name, "sees", *environment).split())
            assert (is_client, took_ms) == (1, pytest.approx(expected_ms, abs=25)), (name, environment)
    eventually(lambda: node.limits_of("quarter", "half") == ["InForce", "Idle"], what="limits in force")
    assert node.audit()["processes"] == []


def test_kinds_do_not_meet_on_a_gpu(node: Node) -> None:
    node.client("client", "stays", 0)
    node.start("free", "works", 1, isolation="none")
    for gpu, kind, theirs in ((0, "none", "mps"), (0, "arbiter", "mps"), (1, "mps", "none")):
        node.create(f"{kind}-{gpu}", "stays", gpu, isolation=kind, limit="25%")
        assert f"has isolation {theirs}, not {kind}" in node.reason(f"{kind}-{gpu}")
    node.create("elsewhere", "stays", 3, isolation="mps", limit="25%")
    assert "1 without that isolation" in node.reason("elsewhere")
    for name, asked, kind in (("auto", {"limit": "25%"}, "mps"), ("burst", {"limit": "100%"}, "arbiter")):
        node.start(name, "stays", None, isolation="auto", **asked)
        assert (annotation(node.user.running(name), contract.ISOLATION_GIVEN) or "arbiter") == kind
        assert f"{kind}: " in node.user.plugin("why", name, f"--namespace={node.user.namespace}")
    assert node.run("auto", "sees").split()[0] == "1"
    assert node.run("burst", "sees").split()[0] == "0"
    node.goes_on("free")

    def placed() -> bool:
        pods = [node.user.pod(name) or {"metadata": {}} for name in ("none-0", "arbiter-0")]
        return any(annotation(pod, contract.ALLOCATION) for pod in pods)

    assert not placed()
    node.delete("client", "auto")
    eventually(placed, what="a share of another kind on the GPU that is free again")


def test_a_fault_or_a_dead_server_ends_the_clients_of_that_gpu_only(node: Node) -> None:
    node.client("culprit", "stays", 0)
    node.client("neighbour", "works", 0)
    node.client("other-gpu", "works", 1)
    node.goes_on("neighbour", "other-gpu")
    node.run("culprit", "faults")
    eventually(lambda: node.restarts("neighbour") == 1, what="the neighbour ended")
    assert "cuCtxSynchronize" in node.user.kubectl("logs", "neighbour", "--previous").splitlines()[-1]
    node.goes_on("neighbour", "other-gpu")

    daemons = node.daemon(0), node.daemon(1)
    os.kill(node.server(1), signal.SIGKILL)
    eventually(lambda: node.restarts("other-gpu") == 1, what="its client ended")
    eventually(lambda: node.done("other-gpu") > 0, what="served by the next server")
    assert (node.daemon(0), node.daemon(1)) == daemons
    assert node.restarts("neighbour") == 1

    os.kill(daemons[0], signal.SIGKILL)
    eventually(lambda: Isolation.MPS not in node.isolations(0), what="not offered")
    eventually(lambda: node.isolations(0) == ALLOWED, what="offered by the next daemon")
    assert node.daemon(0) != daemons[0]
    node.goes_on("other-gpu")
    assert node.restarts("other-gpu") == 1

    node.client("starts-servers", "stays", 1)
    for _ in range(MAX_SERVER_FAILURES - 1):
        assert node.run("starts-servers", "sees").startswith("1 ")
        os.kill(node.server(1), signal.SIGKILL)
    eventually(lambda: Isolation.MPS not in node.isolations(1), what="not offered")
    why = f"its servers failed {MAX_SERVER_FAILURES} times"
    eventually(lambda: why in node.condition(contract.CONDITION_LIMITS_IN_FORCE)[1], what="reported")
    eventually(lambda: node.audit()["summary"]["inForce"] is False, what="told by the audit")


@pytest.fixture
def without_agent(installed: lab_layout.Layout, lab: access.Access) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Ends the agent for the rest of the test. The keeper of the daemons stays, as in an upgrade."""
    daemon_set = f"daemonset/{gpushare.AGENT}"

    def select(labels: dict[str, str | None]) -> None:
        change = {"spec": {"template": {"spec": {"nodeSelector": labels}}}}
        lab.kubectl("patch", daemon_set, *gpushare.SCOPE, f"--patch={json.dumps(change)}")

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        select({"none": "none"})
        try:
            eventually(lambda: not gpushare.pods(lab, "agent"), what="without an agent")
            yield
        finally:
            select({"none": None})
            gpushare.ready(installed, lab)

    return away


def test_clients_live_on_without_the_agent_and_a_killed_one_wedges_its_gpu(node: Node, without_agent: Any) -> None:
    """With this driver, CUDA 12.4. The client is killed by the kubelet, at the end of its grace period."""
    node.client("victim", "insists", 0)
    node.client("neighbour", "works", 0)
    node.client("other-gpu", "works", 2)
    node.goes_on("victim", "neighbour", "other-gpu")
    daemon = node.daemon(2)
    with without_agent():
        node.goes_on("victim", "neighbour", "other-gpu")
        assert "cuInit 802" in node.run("other-gpu", "sees")
        node.user.kubectl("delete", "pod", "victim", "--grace-period=0", "--force")
    assert node.daemon(2) == daemon
    assert node.run("other-gpu", "sees") == "1 200"
    node.goes_on("other-gpu")
    assert node.restarts("other-gpu") == 0
    eventually(lambda: node.limits_of("neighbour", "other-gpu") == ["InForce", "InForce"], what="limits in force")
    last = node.done("neighbour")
    node.goes_on("other-gpu")
    assert node.done("neighbour") == last
