"""gpushare in the lab: the manifests of config/lab, and each component as a process with its own ServiceAccount.

There are no images to pull here, so webhook and agent run beside the cluster instead of in it: with exactly the rights
of the manifests, on the node's own mounts, and with the simulated driver where the real one would be.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpushare import contract
from lab import access, addresses, cgroups, component, errors, kubeconfig, layout, mounts, oci_runtime, process

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build"
DRIVER = BUILD / "simgpu"
NODE_DESCRIPTION = REPOSITORY / "simgpu" / "samples" / "lab-node.ini"
WEBHOOK = "gpushare-webhook"
PLACEHOLDER_URL = "https://localhost:8443/mutate"  # in config/lab, where no lab's address can be known
READY_SECONDS = 60.0
LIFETIME_OF_TOKENS = "8760h"  # longer than any lab lives


def agent_name(node: layout.Node) -> str:
    """The name of a node's agent among the lab's processes."""
    return f"{node.name}.gpushare-agent"


def install(lab: layout.Layout, administrator: access.Access) -> None:
    """Install gpushare, or start what is missing of it, and wait until pods can share GPUs.

    Raises:
        LabError: something is not built, or did not become ready in time.
    """
    for built in (DRIVER / "simgpu", DRIVER / "libcuda.so.1", BUILD / "libgpushare.so"):
        if not built.exists():
            raise errors.LabError(f"{built} is not built; build it by: make build")
    manifests = administrator.kubectl("kustomize", str(REPOSITORY / "config" / "lab"))
    manifests = manifests.replace(PLACEHOLDER_URL, webhook_url(lab))
    administrator.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=manifests)
    administrator.kubectl("wait", "--for=condition=Established", "crd/gpunodes.gpushare.io", "--timeout=30s")
    for node in lab.nodes:
        _create_gpus(lab, node)
    daemons = [webhook(lab, administrator), *(agent(lab, node, administrator) for node in lab.nodes)]
    component.start(daemons, lab)
    component.wait(daemons, lab, READY_SECONDS)
    for node in lab.nodes:
        has = f"--for=jsonpath={{.status.allocatable.{contract.RESOURCE_PERCENT.replace('.', chr(92) + '.')}}}"
        administrator.kubectl("wait", f"node/{node.name}", has, "--timeout=30s")


def webhook(lab: layout.Layout, administrator: access.Access) -> component.Component:
    """The webhook, reached by its address, since nothing here routes a Service's."""
    host = lab.address
    port, probe_port = _ports(lab, WEBHOOK, host)
    credentials = _credentials(lab, administrator, contract.WEBHOOK_SERVICE_ACCOUNT, WEBHOOK)
    argv = (
        *(sys.executable, "-m", "webhook", f"--kubeconfig={credentials}"),
        *(f"--host={host}", f"--port={port}", f"--probe-host={host}", f"--probe-port={probe_port}"),
        f"--url={webhook_url(lab)}",
        f"--certificate-directory={lab.directory / WEBHOOK}",
    )
    return _daemon(lab, process.Process(WEBHOOK, argv, directory=REPOSITORY), f"http://{host}:{probe_port}/readyz")


def webhook_url(lab: layout.Layout) -> str:
    """Where the API server sends pods."""
    port, _ = _ports(lab, WEBHOOK, lab.address)
    return f"https://{lab.address}:{port}{contract.WEBHOOK_PATH}"


def webhook_metrics_url(lab: layout.Layout) -> str:
    """Where the webhook's metrics are."""
    _, probe_port = _ports(lab, WEBHOOK, lab.address)
    return f"http://{lab.address}:{probe_port}/metrics"


def agent_metrics_url(lab: layout.Layout, node: layout.Node) -> str:
    """Where the metrics of a node's agent are."""
    host = lab.node_address(node.number)
    _, probe_port = _ports(lab, agent_name(node), host)
    return f"http://{host}:{probe_port}/metrics"


def agent(lab: layout.Layout, node: layout.Node, administrator: access.Access) -> component.Component:
    """A node's agent, in the node's mount namespace: the kubelet's directory is where it always is."""
    name = agent_name(node)
    host = lab.node_address(node.number)
    _, probe_port = _ports(lab, name, host)
    bound = ("--bound-object-kind=Node", f"--bound-object-name={node.name}")
    credentials = _credentials(lab, administrator, contract.AGENT_SERVICE_ACCOUNT, name, *bound)
    directory = lab.node_directory(node)
    argv = (
        *(sys.executable, "-m", "deviceplugin", f"--kubeconfig={credentials}", f"--node-name={node.name}"),
        *(f"--root={directory / 'gpushare'}", f"--run-directory={directory / 'arbiter'}"),
        *(f"--library={BUILD / 'libgpushare.so'}", f"--cdi-directory={oci_runtime.cdi_directory(lab, node)}"),
        f"--mps-program={DRIVER / 'nvidia-cuda-mps-control'}",
        *(f"--probe-host={host}", f"--probe-port={probe_port}"),
    )
    daemon = process.Process(
        name,
        mounts.inside(lab, node, argv),
        # Entering a mount namespace leaves the working directory behind.
        environment={
            "PYTHONPATH": str(REPOSITORY),
            "SIMGPU_DIR": str(lab.gpus(node)),
            "LD_LIBRARY_PATH": str(DRIVER),
        },
        groups=cgroups.joined(mounts.cgroup(lab, node)),
    )
    return _daemon(lab, daemon, f"http://{host}:{probe_port}/readyz")


def _daemon(lab: layout.Layout, daemon: process.Process, ready: str) -> component.Component:
    return component.Component(daemon, component.URL(ready, lab.certificates / "ca.crt"))


def _create_gpus(lab: layout.Layout, node: layout.Node) -> None:
    if any(lab.gpus(node).glob("gpu*")):
        return  # they outlive every process, as cards do
    command = [str(DRIVER / "simgpu"), "create", "--node", node.name, str(NODE_DESCRIPTION), str(lab.gpus(node))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise errors.LabError(f"the GPUs of {node.name} could not be made: {result.stderr.strip()}")


def _credentials(lab: layout.Layout, administrator: access.Access, account: str, name: str, *bound: str) -> Path:
    """The kubeconfig of a component: made once, as the token in it lives longer than the lab."""
    path = lab.kubeconfigs / name
    if not path.exists():
        command = ("create", "token", account, f"--namespace={contract.SYSTEM_NAMESPACE}")
        token = administrator.kubectl(*command, f"--duration={LIFETIME_OF_TOKENS}", *bound).strip()
        text = kubeconfig.with_token(lab.server, lab.certificates / "ca.crt", token, contract.SYSTEM_NAMESPACE)
        kubeconfig.write(path, text)
    return path


def _ports(lab: layout.Layout, name: str, host: str) -> tuple[int, int]:
    """Two ports of a component, chosen when it first starts and kept, so that a restart changes no address."""
    path = lab.directory / f"{name}.ports"
    if not path.exists():
        free: Iterator[int] = addresses.free_ports(host, (8443, 8081))
        path.write_text(json.dumps([next(free), next(free)]))
    serving, probing = json.loads(path.read_text())
    return serving, probing
