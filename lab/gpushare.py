"""Installs gpushare into a lab: imports its images into each node, and applies the manifests of config/lab.

Only two steps differ from a real cluster: the GPUs are simulated, and the images are imported from files because there
is no registry.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from config.images import build as images
from gpushare import contract
from lab import access, build, component, containerd, lab_errors, lab_layout, node_cgroup, node_mounts
from lab.runtime import create

REPOSITORY = Path(__file__).resolve().parent.parent
DRIVER = REPOSITORY / "build" / "simgpu"
MANIFESTS = REPOSITORY / "config" / "lab"
DRIVER_VERSION = "550.54.15"  # as in NODE_DESCRIPTION
NODE_DESCRIPTION = REPOSITORY / "simgpu" / "samples" / "lab-node.ini"
WEBHOOK, AGENT = "gpushare-webhook", "gpushare-agent"
PROBE_PORT = 8081
READY_SECONDS = 120.0
POLL_SECONDS = 0.1
SCOPE = (f"--namespace={contract.SYSTEM_NAMESPACE}",)
AT_ONCE = ("--grace-period=0", "--force")


def install(lab: lab_layout.Layout, administrator: access.Access, manifests: Path = MANIFESTS) -> None:
    """Install gpushare or its missing parts, by the lab's manifests or others, and wait until pods can share GPUs.

    Raises:
        LabError: something is not built, or did not become ready in time.
    """
    changed = prepare(lab)
    crd = str(MANIFESTS.parent / "base/crd/gpunodes.yaml")
    administrator.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={crd}")
    administrator.wait_until_established("gpunodes.gpushare.io")
    administrator.kubectl("apply", "--server-side", "--force-conflicts", f"--kustomize={manifests}")
    if changed:  # the names stay the same, so running pods keep the old images
        administrator.kubectl("rollout", "restart", *SCOPE, f"deployment/{WEBHOOK}", f"daemonset/{AGENT}")
        administrator.kubectl("delete", "pods", *_labelled("mps"), "--ignore-not-found", *AT_ONCE)
    ready(lab, administrator)


def prepare(lab: lab_layout.Layout) -> bool:
    """Create each node's GPUs and import the images; return whether an image of the same name was replaced."""
    for part in (DRIVER / "simgpu", DRIVER / "libcuda.so.1"):
        if not part.exists():
            raise lab_errors.LabError(f"{part} is not built; build it by: make build")
    built = built_images()
    for node in lab.nodes:
        _create_gpus(lab, node)
        _install_driver(lab, node)
    replaced = [_import(lab, node, built) for node in lab.nodes]
    return any(replaced)


@functools.cache
def built_images() -> images.Archives:
    """Return the images of this checkout; build them once. The caller must hold a lock."""
    return images.ensure(kubectls=[build.kubectl()])


def ready(lab: lab_layout.Layout, administrator: access.Access) -> None:
    """Wait until the webhook and the agents are ready, and every node offers its GPUs.

    Raises:
        LabError: that took too long.
    """
    deadline = time.monotonic() + READY_SECONDS

    def until(what: str, looks: Callable[[], bool]) -> None:
        while not looks():
            if time.monotonic() > deadline:
                raise lab_errors.LabError(f"{what} was not ready after {READY_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    until("the webhook", lambda: _is_rolled_out(administrator, f"deployments/{WEBHOOK}"))
    until("an agent", lambda: _is_rolled_out(administrator, f"daemonsets/{AGENT}"))
    for node in lab.nodes:
        # A DaemonSet counts as rolled out before it has noticed its node.
        until(f"the agent of {node.name}", functools.partial(_has_agent, administrator, node))
        until(f"{node.name} with GPUs", functools.partial(_offers_shares, administrator, node))


def _is_rolled_out(administrator: access.Access, workload: str) -> bool:
    """Whether all pods of a Deployment or DaemonSet are new and available, as `kubectl rollout status` waits for."""
    document = administrator.read(f"/apis/apps/v1/namespaces/{contract.SYSTEM_NAMESPACE}/{workload}")
    status = document["status"]
    if status.get("observedGeneration", 0) < document["metadata"]["generation"]:
        return False
    wanted = document["spec"].get("replicas", status.get("desiredNumberScheduled", 0))
    made = status.get("replicas", status.get("currentNumberScheduled", 0))
    new = status.get("updatedReplicas", status.get("updatedNumberScheduled", 0))
    available = status.get("availableReplicas", status.get("numberAvailable", 0))
    return bool(made <= new >= wanted <= available)


def _has_agent(administrator: access.Access, node: lab_layout.Node) -> bool:
    return any(map(is_ready, _of_node(pods(administrator, "agent"), node)))


def _offers_shares(administrator: access.Access, node: lab_layout.Node) -> bool:
    status = administrator.read(f"/api/v1/nodes/{node.name}")["status"]
    return contract.RESOURCE_PERCENT in status.get("allocatable", {})


def pods(administrator: access.Access, part: str) -> list[dict[str, Any]]:
    """Return the pods of a part, `webhook`, `agent` or `mps`, that are not being deleted."""
    return [pod for pod in listed(administrator, part) if "deletionTimestamp" not in pod["metadata"]]


def listed(administrator: access.Access, part: str) -> list[dict[str, Any]]:
    """Return all pods of a part, including those that are being deleted."""
    query = urllib.parse.urlencode({"labelSelector": _labels(part)})
    return list(administrator.read(f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/pods?{query}")["items"])


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod is ready."""
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def page(administrator: access.Access, pod: str, path: str = "metrics") -> str:
    """Return a page from the probe port of one of gpushare's pods, through the API server's proxy."""
    proxy = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/pods/{pod}:{PROBE_PORT}/proxy/{path.lstrip('/')}"
    return administrator.text(proxy)


def agent_page(administrator: access.Access, node: lab_layout.Node, path: str = "metrics") -> str:
    """Return a page from the probe port of a node's agent."""
    (agent,) = _of_node(pods(administrator, "agent"), node)
    return page(administrator, agent["metadata"]["name"], path)


def kill(lab: lab_layout.Layout, pod: dict[str, Any]) -> None:
    """SIGKILL all processes of a pod's containers; the kubelet starts them again."""
    for status in pod["status"].get("containerStatuses", []):
        container = status.get("containerID", "").rpartition("/")[2]
        if container:
            _kill_below(lab, container)


@contextlib.contextmanager
def without_agent(lab: lab_layout.Layout, node: lab_layout.Node, administrator: access.Access) -> Iterator[None]:
    """Remove a node from the DaemonSet and kill its agent with SIGKILL; restore both afterwards."""
    path = f"/api/v1/nodes/{node.name}"
    labels = administrator.read(path)["metadata"]["labels"]
    joined_by = {key: labels[key] for key in _labels_of_agents_nodes(administrator) if key in labels}

    def agents() -> list[dict[str, Any]]:
        return _of_node(listed(administrator, "agent"), node)

    try:
        _kill_all(lab, agents())
        administrator.patch(path, {"metadata": {"labels": dict.fromkeys(joined_by)}})
        _kill_until_gone(lab, agents)
        yield
    finally:
        administrator.patch(path, {"metadata": {"labels": joined_by}})
        ready(lab, administrator)


@contextlib.contextmanager
def without_webhook(lab: lab_layout.Layout, administrator: access.Access) -> Iterator[None]:
    """Scale the webhook to zero and kill all replicas with SIGKILL; restore them afterwards."""
    path = f"/apis/apps/v1/namespaces/{contract.SYSTEM_NAMESPACE}/deployments/{WEBHOOK}"

    def replicas() -> list[dict[str, Any]]:
        return listed(administrator, "webhook")

    try:
        _kill_all(lab, replicas())  # without a grace period, in which they would continue to serve
        administrator.patch(path, {"spec": {"replicas": 0}})
        _kill_until_gone(lab, replicas)
        yield
    finally:
        administrator.patch(path, {"spec": {"replicas": 2}})
        ready(lab, administrator)


def _kill_until_gone(lab: lab_layout.Layout, pods_left: Callable[[], list[dict[str, Any]]]) -> None:
    # The kubelet restarts killed containers until it knows that the pod was deleted, so kill again until the pod is
    # gone. A forced deletion would remove the pod object earlier, and its controller could then create a replacement.
    deadline = time.monotonic() + READY_SECONDS
    while left := pods_left():
        if time.monotonic() > deadline:
            names = ", ".join(pod["metadata"]["name"] for pod in left)
            raise lab_errors.LabError(f"killed pods did not end in {READY_SECONDS:.0f} s: {names}")
        _kill_all(lab, left)
        time.sleep(component.POLL_SECONDS)


def _kill_all(lab: lab_layout.Layout, killed: list[dict[str, Any]]) -> None:
    for pod in killed:
        _kill_below(lab, f"pod{pod['metadata']['uid']}")


def _kill_below(lab: lab_layout.Layout, cgroup: str) -> None:
    for pid in node_cgroup.members_below(lab.cgroup, cgroup):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _labels_of_agents_nodes(administrator: access.Access) -> set[str]:
    path = f"/apis/apps/v1/namespaces/{contract.SYSTEM_NAMESPACE}/daemonsets/{AGENT}"
    affinity = administrator.read(path)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return {expression["key"] for term in terms for expression in term["matchExpressions"]}


def _labelled(part: str) -> tuple[str, ...]:
    return (*SCOPE, f"--selector={_labels(part)}")


def _labels(part: str) -> str:
    return f"app.kubernetes.io/name=gpushare,app.kubernetes.io/component={part}"


def _of_node(candidates: list[dict[str, Any]], node: lab_layout.Node) -> list[dict[str, Any]]:
    return [pod for pod in candidates if pod["spec"].get("nodeName") == node.name]


def _create_gpus(lab: lab_layout.Layout, node: lab_layout.Node) -> None:
    if any(lab.gpus(node).glob("gpu*")):
        return  # simulated GPUs outlive every process, as real ones do
    command = [str(DRIVER / "simgpu"), "create", "--node", node.name, str(NODE_DESCRIPTION), str(lab.gpus(node))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise lab_errors.LabError(f"the GPUs of {node.name} could not be created: {result.stderr.strip()}")


def _install_driver(lab: lab_layout.Layout, node: lab_layout.Node) -> None:
    """Install a driver root on the node at the GPU Operator's path. The CDI specifications list its files."""
    root = node_mounts.inside_directory(lab, node, "/run/nvidia") / "driver"
    for name, directory in create.DRIVER.items():
        place = root / directory.removeprefix("/")
        place.mkdir(parents=True, exist_ok=True)
        library = name.endswith(".so.1")
        versioned = name.removesuffix(".1") + f".{DRIVER_VERSION}" if library else name
        scratch = place / f"{name}.new"
        shutil.copyfile(DRIVER / name, scratch)
        scratch.chmod(0o755)
        scratch.rename(place / versioned)  # atomically, because an agent may have it mapped
        if library and not (place / name).exists():
            (place / name).symlink_to(versioned)


def _import(lab: lab_layout.Layout, node: lab_layout.Node, built: images.Archives) -> bool:
    """Import the images that a node lacks; return whether it had others of the same names."""
    record = lab.node_directory(node) / "gpushare-images.json"
    before = json.loads(record.read_text()) if record.exists() else {}
    archives = built.by_name().values()
    for archive in archives:
        if before.get(archive.name) != archive.digest:
            # Few pods run the plugin, whose image is the largest.
            containerd.import_images(lab, node, archive.path, unpack=archive is not built.plugin)
    now = {archive.name: archive.digest for archive in archives}
    record.write_text(json.dumps(now))
    return bool(before) and before != now
