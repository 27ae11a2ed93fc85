"""A real API server with gpushare's manifests, GPUNodes made by hand, and webhooks that run as their ServiceAccount."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from gpushare.gpunode import GpuNode
from lab import access, lab_errors
from tests import builders
from tests.config import manifests as manifest_files
from tests.webhook import balancer, replica
from tests.webhook.replica import until

MANIFESTS = ("namespace", "crd", "rbac", "policy", "certificates", "admission")
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpushare"
BASE = replica.REPOSITORY / "config" / "base"
NODES = "/api/v1/nodes"
WITH_MANIFESTS = {"manifests", "scheduled_manifests", "with_component"}  # fixtures
# Objects without finalizers are deleted at once, but kubectl would wait four seconds for them.
AT_ONCE = ("--ignore-not-found", "--wait=false")
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{contract.SYSTEM_NAMESPACE}/leases"


class Cluster:
    """A cluster as a test uses and sees it."""

    def __init__(self, administrator: access.Access, namespace: str, front: balancer.Balancer, directory: Path) -> None:
        self.administrator = administrator
        self.namespace = namespace
        self.front = front
        self.directory = directory
        self.replicas: list[replica.Replica] = []
        self.path = f"/api/v1/namespaces/{namespace}"

    @functools.cached_property
    def account(self) -> replica.ServiceAccount:
        """Return the webhook's ServiceAccount, with exactly the permissions of the manifests."""
        directory = self.directory / "serviceaccount"
        named = (contract.SYSTEM_NAMESPACE, contract.WEBHOOK_SERVICE_ACCOUNT)
        return replica.ServiceAccount(directory, self.administrator.mount_service_account(*named, directory))

    def kubectl(self, *arguments: str, **more: Any) -> str:
        return self.administrator.kubectl(*arguments, **more)

    def start(
        self, *arguments: str, environment: Mapping[str, str] | None = None, program: Sequence[str] = replica.PROGRAM
    ) -> replica.Replica:
        """Start another replica, ready and behind the balancer; `environment`: of another release."""
        name = f"replica-{len(self.replicas)}"
        flags = (
            f"--url=https://127.0.0.1:{self.front.port}{contract.WEBHOOK_PATH}",
            f"--instance={name}",
        )
        started = replica.Replica(
            self.directory / name,
            *flags,
            *arguments,
            account=self.account,
            environment=environment,
            program=program,
        )
        self.replicas.append(started)
        started.wait_ready()
        self.front.ports.append(started.port)
        until(self.is_registered, started.explain)
        for known_replica in self.replicas:
            if known_replica.process.poll() is None:
                known_replica.count_from_here()
        return started

    def is_registered(self) -> bool:
        """Whether the API server uses the registration, which it learns from a watch."""
        try:
            self.create(builders.pod("nobody", request="0.01"), dry_run=True)
        except lab_errors.LabError:
            return False
        return True

    def add_plain_node(self, name: str) -> None:
        """Create a ready Node."""
        made = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: f"{name}.example"}},
        }
        self.administrator.create(NODES, made)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self.administrator.patch(f"{NODES}/{name}/status", ready)
        # Remove it here, because there is no node controller.
        self.administrator.patch(f"{NODES}/{name}", {"spec": {"taints": None}})

    def kill(self, placing: replica.Replica) -> None:
        """Kill the replica that places, and release its Lease: the next one need not wait until that runs out."""
        placing.kill()
        released = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        self.administrator.patch(f"{LEASES}/{contract.PLACER_LEASE}", released)

    def describe(self, node: str, amounts: Mapping[str, str]) -> None:
        """Write a Node's status, as its kubelet would."""
        status = {"status": {"allocatable": amounts, "capacity": amounts}}
        self.administrator.patch(f"{NODES}/{node}/status", status)

    def add_node(self, node: GpuNode) -> None:
        """Create a ready Node and its GPUNode."""
        self.add_plain_node(node.name)
        self.administrator.create(contract.GPUNODE_PATH, codec.to_document(node))
        self.change(node.name, {"status": codec.to_status(node)}, "status")

    def change(self, gpunode: str, patch: Mapping[str, object] | Sequence[object], subresource: str = "") -> None:
        """Patch a GPUNode, as another client would."""
        self.administrator.patch(f"{contract.GPUNODE_PATH}/{gpunode}/{subresource}".rstrip("/"), patch)

    def delete_gpunode(self, name: str = "node-a") -> None:
        self.administrator.delete(f"{contract.GPUNODE_PATH}/{name}")

    def remake(self, node: GpuNode) -> None:
        """Create a GPUNode as the agent does, by two writes: the object without a spec, then its status with the
        GPUs.
        """
        bare = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "metadata": {"name": node.name}}
        self.administrator.create(contract.GPUNODE_PATH, bare)
        self.change(node.name, {"status": codec.to_status(node)}, "status")

    def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create a pod; return it as stored."""
        manifest = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}
        return self.administrator.create(f"{self.path}/pods", manifest, dry_run=dry_run)

    def add_quota(self, name: str, hard: Mapping[str, str]) -> None:
        """Create a ResourceQuota, and write the used amounts, because there is no quota controller."""
        path = f"{self.path}/resourcequotas"
        self.administrator.create(path, {"metadata": {"name": name}, "spec": {"hard": hard}})
        used = {"hard": hard, "used": dict.fromkeys(hard, "0")}
        self.administrator.patch(f"{path}/{name}/status", {"status": used})

    def events(self, namespace: str | None = None) -> list[dict[str, Any]]:
        """Return the Events of its namespace, or of another one; Events about nodes are in `default`."""
        events = self.administrator.read(f"/api/v1/namespaces/{namespace or self.namespace}/events")
        return list(events["items"])

    def notes(self, reason: str, namespace: str | None = None) -> list[str]:
        """Return the notes of Events with this reason."""
        return [event["message"] for event in self.events(namespace) if event["reason"] == reason]

    def create_placed(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create a pod, and return it once it has a share: it may wait until earlier pods are seen."""
        name = self.create(manifest)["metadata"]["name"]
        until(lambda: contract.ALLOCATION in self.pod(name)["metadata"]["annotations"], self.explain)
        return self.pod(name)

    def refuses(self, manifest: dict[str, Any], said: str) -> bool:
        """Whether a pod would be rejected now with these words."""
        try:
            self.create(manifest, dry_run=True)
        except lab_errors.LabError as error:
            return said in str(error)
        return False

    def delete(self, name: str) -> None:
        self.administrator.delete(f"{self.path}/pods/{name}")

    def bind(self, name: str) -> None:
        """Bind a placed pod to its node, as the scheduler would."""
        node = self.pod(name)["metadata"]["annotations"][contract.NODE]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.administrator.create(f"{self.path}/pods/{name}/binding", binding)

    def pod(self, name: str) -> dict[str, Any]:
        return self.administrator.read(f"{self.path}/pods/{name}")

    def pods(self) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.administrator.read(f"{self.path}/pods")["items"]
        return pods

    def node(self, name: str = "node-a") -> GpuNode:
        return codec.read(self.administrator.read(f"{contract.GPUNODE_PATH}/{name}"))

    def is_open(self, name: str = "node-a") -> bool:
        """Whether a GPUNode has a ledger."""
        return "allocations" in self.administrator.read(f"{contract.GPUNODE_PATH}/{name}").get("spec", {})

    def is_settled(self, name: str = "node-a") -> bool:
        """Whether the ledger is exactly what the placed pods hold, and confirmed."""
        node = self.node(name)
        assert ledger.violations(node) == []
        held = {(entry.id, entry.pod.uid) for entry in node.allocations if entry.reserved_until is None}
        wanted = {
            (pod["metadata"]["annotations"].get(contract.ALLOCATION), pod["metadata"]["uid"])
            for pod in self.pods()
            if contract.ALLOCATION in pod["metadata"].get("annotations", {})
        }
        return held == wanted and len(node.allocations) == len(held)

    def explain(self) -> str:
        logs = "\n".join(replica.explain() for replica in self.replicas)
        return f"{self.node().allocations}\n{logs}"


@pytest.fixture(scope="module")
def manifests(api_server: access.Access) -> Iterator[access.Access]:
    """An API server with gpushare's manifests."""
    yield from installed(api_server)


@pytest.fixture
def cluster(manifests: access.Access, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without replicas, with one node, `node-a`, that has four GPUs of 80 GiB."""
    yield from prepared(manifests, tmp_path)


@pytest.fixture(scope="module")
def scheduled_manifests(scheduler: access.Access) -> Iterator[access.Access]:
    """An API server and a scheduler with gpushare's manifests."""
    yield from installed(scheduler)


@pytest.fixture
def scheduled(scheduled_manifests: access.Access, tmp_path: Path) -> Iterator[Cluster]:
    """The same cluster with a real scheduler."""
    yield from prepared(scheduled_manifests, tmp_path)


def apply(administrator: access.Access, base: Path = BASE) -> None:
    """Apply the manifests of this release, or of another one."""
    # The replicas of a test register a URL, and the API server allows no Service next to it.
    if administrator.find(CONFIGURATION) is not None:
        administrator.kubectl("delete", *AT_ONCE, "-k", str(base / "admission"))
    with manifest_files.together(*(base / part for part in MANIFESTS)) as directory:
        administrator.kubectl("apply", "--server-side", "--force-conflicts", "-k", directory)
    administrator.wait_until_established("gpunodes.gpushare.io")


_installed: list[access.Access] = []
_stay = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Let manifests stay if the next test needs them, too. To remove and apply them takes a second of a core."""
    global _stay
    if isinstance(nextitem, pytest.Function) and nextitem.path.is_relative_to(Path(__file__).parent):
        _stay = not WITH_MANIFESTS.isdisjoint(nextitem.fixturenames)
    try:
        return (yield)
    finally:
        _stay = False


def installed(administrator: access.Access) -> Iterator[access.Access]:
    """Yield the API server with the manifests of this release."""
    if administrator not in _installed:
        apply(administrator)
        _installed.append(administrator)
    yield administrator
    while _installed and not _stay:
        remove(_installed.pop(), "admission", "certificates", "policy")


def remove(administrator: access.Access, *parts: str) -> None:
    """Remove manifests that would reject the pods of other tests."""
    with manifest_files.together(*(BASE / part for part in parts)) as directory:
        administrator.kubectl("delete", *AT_ONCE, "-k", directory)
    with administrator.namespace() as namespace:
        until(lambda: _is_free_of_policies(administrator, namespace))


def _is_free_of_policies(administrator: access.Access, namespace: str) -> bool:
    """Whether pods of other tests are admitted: the API server applies a policy for a moment after it was deleted."""
    manifest = builders.counted(builders.pod("nobody", namespace=namespace))
    try:
        administrator.create(f"/api/v1/namespaces/{namespace}/pods", manifest, dry_run=True)
    except lab_errors.LabError:
        return False
    return True


def prepared(administrator: access.Access, directory: Path) -> Iterator[Cluster]:
    """Yield a cluster with one node and no replica."""
    with administrator.namespace() as namespace, balancer.running() as front:
        made = Cluster(administrator, namespace, front, directory)
        made.add_node(builders.node())
        try:
            yield made
        finally:
            for replica in made.replicas:
                if replica.process.poll() is None:
                    replica.kill()
            for path in (contract.GPUNODE_PATH, NODES, f"{LEASES}/{contract.PLACER_LEASE}"):
                administrator.delete(path)
