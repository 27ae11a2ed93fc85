"""A node's containerd: configuration, command line, and the import of images from a file instead of a registry."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from lab import (
    component,
    daemon_process,
    image,
    lab_errors,
    lab_layout,
    network,
    node_cgroup,
    node_mounts,
    prerequisites,
)

# Every container starts through the runtime that adds the simulated GPUs, as on nodes where NVIDIA's is the default.
# The handler `nvidia` is for pods that name a RuntimeClass. The other settings differ from the defaults because:
# - netns_mounts_under_state_dir: network namespaces then end with the node's mount namespace.
# - container_annotations: this containerd has no CDI; the runtime reads the annotations, as NVIDIA's can.
# - restrict_oom_score_adj: without CAP_SYS_RESOURCE a sandbox cannot set its OOM score, and fails.
CONFIGURATION = """\
version = 2
root = {root}
state = "/run/containerd"

[grpc]
address = {socket}

[plugins."io.containerd.internal.v1.opt"]
path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = {sandbox_image}
disable_apparmor = true
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {cni_programs}
conf_dir = {cni_configuration}

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = {snapshotter}
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
container_annotations = ["cdi.k8s.io/*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = {runtime}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
container_annotations = ["cdi.k8s.io/*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = {runtime}
"""
IMPORT_SECONDS = 60.0


def socket(lab: lab_layout.Layout, node: lab_layout.Node) -> Path:
    """Return the path of a node's containerd socket."""
    return lab.node_directory(node) / "containerd.sock"


def runtime(lab: lab_layout.Layout, node: lab_layout.Node) -> Path:
    """Return the path of a node's OCI runtime, a wrapper that adds simulated GPUs and then executes runc."""
    return lab.node_directory(node) / "nvidia-container-runtime"


def write_files(lab: lab_layout.Layout, node: lab_layout.Node) -> None:
    """Write the configuration of containerd and its network."""
    directory = lab.node_directory(node)
    cni = directory / "cni"
    cni.mkdir(parents=True, exist_ok=True)
    (cni / "10-lab.conflist").write_text(network.cni_configuration(lab, node))
    values = {
        "root": directory / "containerd",
        "socket": socket(lab, node),
        "opt": directory / "opt",
        "sandbox_image": image.PAUSE,
        "cni_programs": prerequisites.cni_directory(),
        "cni_configuration": cni,
        "snapshotter": _snapshotter(directory),
        "runtime": runtime(lab, node),
    }
    text = CONFIGURATION.format_map({key: json.dumps(str(value)) for key, value in values.items()})
    (directory / "containerd.toml").write_text(text)


def build(lab: lab_layout.Layout, node: lab_layout.Node) -> component.Component:
    """Return containerd as a component."""
    argv = (prerequisites.program("containerd"), f"--config={lab.node_directory(node) / 'containerd.toml'}")
    daemon = daemon_process.Process(
        f"{node.name}.containerd",
        node_mounts.inside(lab, node, argv),
        environment={"PATH": prerequisites.SEARCH_PATH},
        groups=node_cgroup.joined(node_mounts.cgroup(lab, node)),
    )
    return component.Component(daemon, component.UnixSocket(socket(lab, node)))


def import_images(lab: lab_layout.Layout, node: lab_layout.Node, archive: Path, *, unpack: bool = True) -> None:
    """Import the images of a Docker archive into a node. Without `unpack`, the first container of each unpacks it.

    Raises:
        LabError: containerd refused the archive.
    """
    address = f"--address={socket(lab, node)}"
    snapshotter = f"--snapshotter={_snapshotter(lab.node_directory(node))}"
    ctr = [prerequisites.program("ctr"), address, "--namespace=k8s.io"]
    how = snapshotter if unpack else "--no-unpack"
    command = [*ctr, "images", "import", how, str(archive)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    if result.returncode:
        raise lab_errors.LabError(f"{node.name} could not import the images of {archive}: {result.stderr.strip()}")


def _snapshotter(directory: Path) -> str:
    """Return the snapshotter for this file system: an overlay cannot be stacked on an overlay, as in a Docker
    container.
    """
    mounts_by_length = sorted(
        (line.split()[4], line.partition(" - ")[2].split()[0])
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )
    resolved = os.path.realpath(directory)
    under = [kind for point, kind in mounts_by_length if resolved.startswith(point.rstrip("/") + "/")]
    return "native" if under[-1] == "overlay" else "overlayfs"
