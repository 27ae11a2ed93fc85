"""The nodes of a lab: starts and stops their components in order."""

from __future__ import annotations

from pathlib import Path

from lab import (
    access,
    component,
    containerd,
    image,
    kubelet,
    lab_layout,
    network,
    node_cgroup,
    node_mounts,
    oci_runtime,
)

READY_SECONDS = 60.0
RUNTIME_CLASS = """\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
"""


def process_names(node: lab_layout.Node) -> list[str]:
    """Return the names of a node's daemons, in the order in which they stop."""
    return [f"{node.name}.{part}" for part in ("kubelet", "containerd", "namespace")]


def prepare(lab: lab_layout.Layout) -> None:
    """Start everything that needs no API server: network, cgroups, namespaces, containerd with its images."""
    if not lab.nodes:
        return
    network.create(lab)
    node_mounts.create_directories(lab)
    for node in lab.nodes:
        node_cgroup.create(node_mounts.cgroup(lab, node))
        lab.gpus(node).mkdir(exist_ok=True)
    _start([node_mounts.holder(lab, node) for node in lab.nodes], lab)
    for node in lab.nodes:
        oci_runtime.write(lab, node, containerd.runtime(lab, node))
        containerd.write_files(lab, node)
        kubelet.write_files(lab, node)
    containers = [containerd.build(lab, node) for node in lab.nodes]
    component.start(containers, lab)
    archive = lab.directory / "images.tar"
    image.write(archive)
    component.wait(containers, lab, READY_SECONDS)
    for node in lab.nodes:
        containerd.import_images(lab, node, archive)


def start(lab: lab_layout.Layout, programs: Path, administrator: access.Access) -> None:
    """Start the kubelets. The API server must serve, and `prepare` must have been called."""
    known = administrator.kubectl("get", "nodes", "--output=name").split()
    for node in lab.nodes:
        if f"node/{node.name}" not in known:
            administrator.kubectl("create", "--filename=-", input=kubelet.node_object(lab, node))
    component.start([kubelet.build(lab, node, programs) for node in lab.nodes], lab)
    administrator.kubectl("apply", "--filename=-", input=RUNTIME_CLASS)


def wait(lab: lab_layout.Layout, programs: Path, administrator: access.Access) -> None:
    """Wait until the nodes are ready for pods.

    Raises:
        LabError: a kubelet ended, or its node did not become ready in time.
    """
    component.wait([kubelet.build(lab, node, programs) for node in lab.nodes], lab, READY_SECONDS)
    names = [f"node/{node.name}" for node in lab.nodes]
    timeout = f"--timeout={READY_SECONDS:.0f}s"
    administrator.kubectl("wait", "--for=condition=Ready", *names, timeout, seconds=READY_SECONDS + 10.0)


def stop(lab: lab_layout.Layout) -> None:
    """Kill everything that the nodes started, and remove what they created outside the lab's directory."""
    if not lab.nodes:
        return
    node_cgroup.kill(lab.cgroup)
    node_cgroup.remove(lab.cgroup)
    network.remove(lab)
    node_mounts.remove_directories(lab)


def _start(components: list[component.Component], lab: lab_layout.Layout) -> None:
    component.start(components, lab)
    component.wait(components, lab, READY_SECONDS)
