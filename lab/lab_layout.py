"""The paths below a lab's directory, and the settings that were chosen when it was created."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import lab_errors

MARKER = "lab.json"
MAX_SOCKET_PATH = 107  # the kernel's limit, in bytes
MAX_SOCKET = len("/nodes/lab-node-99/containerd.sock.ttrpc")


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its name, its number (from 0), and its kubelet's ports."""

    name: str
    number: int
    kubelet_port: int
    health_port: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A lab: its directory, the number that its addresses are derived from, its ports and nodes."""

    directory: Path
    number: int
    api_port: int
    scheduler_port: int
    controller_port: int
    nodes: tuple[Node, ...]

    @property
    def address(self) -> str:
        """The loopback address that the control plane listens on."""
        return control_address(self.number)

    @property
    def service_address(self) -> str:
        """The address of the Service `kubernetes`, the first of `service_range`.

        In a lab with nodes it is in the pods' network, where `lab.kubernetes_service` listens; otherwise it is the API
        server's own.
        """
        return f"{self.pod_network}.1" if self.nodes else self.address

    @property
    def service_range(self) -> str:
        """The address range of Services. With nodes, the pods' addresses follow in the same network."""
        return f"{self.pod_network}.0/27" if self.nodes else f"127.77.{self.number}.0/24"

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.address}:{self.api_port}"

    def node_address(self, node_number: int) -> str:
        """Return the loopback address on which a node's kubelet listens."""
        return f"127.78.{self.number}.{node_number + 1}"

    @property
    def pod_network(self) -> str:
        """The first three bytes of the pods' network, which is private to this machine."""
        return f"10.213.{self.number}"

    @property
    def bridge(self) -> str:
        """The bridge device that connects the pods; also the name of the CNI network."""
        return f"gpushare-{self.number}"

    @property
    def cgroup(self) -> str:
        """The parent cgroup of all nodes, relative to each hierarchy's root. It contains every process that a node
        started.
        """
        return f"gpushare-lab-{self.number}"

    @property
    def certificates(self) -> Path:
        """The directory of keys and certificates, as `NAME.key` and `NAME.crt`."""
        return self.directory / "certificates"

    @property
    def kubeconfigs(self) -> Path:
        """The directory with a kubeconfig for each client."""
        return self.directory / "kubeconfigs"

    @property
    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.kubeconfigs / "admin"

    @property
    def processes(self) -> Path:
        """The directory with a file for each running process (`lab.daemon_process`)."""
        return self.directory / "processes"

    @property
    def logs(self) -> Path:
        """The directory with a log file for each component."""
        return self.directory / "logs"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log of gpushare's ServiceAccounts (`lab.api_audit`)."""
        return self.logs / "audit.jsonl"

    @property
    def etcd(self) -> Path:
        """The directory of etcd's data and sockets."""
        return self.directory / "etcd"

    @property
    def simgpu(self) -> Path:
        """The directory of the simulated GPUs: one file per GPU, in a subdirectory per node."""
        return self.directory / "simgpu"

    def node_directory(self, node: Node) -> Path:
        """Return a node's directory: images, containers, kubelet state."""
        return self.directory / "nodes" / node.name

    def gpus(self, node: Node) -> Path:
        """Return the directory of a node's simulated GPUs."""
        return self.simgpu / node.name

    def kubelet_directory(self, node: Node) -> Path:
        """Return the directory that the node's processes see as `/var/lib/kubelet`; it contains
        `device-plugins/kubelet.sock`.
        """
        return self.node_directory(node) / "mounts" / "var/lib/kubelet"


def control_address(number: int) -> str:
    """Return the control plane's address in the lab with this number."""
    return f"127.77.{number}.1"


def default_directory() -> Path:
    """Return the directory of the lab that `make lab` starts; it is outside any checkout."""
    return Path(os.environ.get("GPUSHARE_LAB") or common_directory() / "lab")


def common_directory() -> Path:
    """Return the directory that all labs of this user share, wherever their own directories are."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpushare"


def exists(directory: Path) -> bool:
    """Return whether a lab was created in this directory, running or not."""
    return (directory / MARKER).exists()


def load(directory: Path) -> Layout:
    """Read the layout of an existing lab.

    Raises:
        LabError: there is no lab in the directory.
    """
    try:
        fields = json.loads((directory / MARKER).read_text())
    except FileNotFoundError:
        raise lab_errors.LabError(f"there is no lab in {directory}; start one by: python -m lab up") from None
    nodes = tuple(Node(**node) for node in fields.pop("nodes"))
    return Layout(directory=directory, nodes=nodes, **fields)


def check(directory: Path) -> None:
    """Check that a lab can be created in this directory.

    Raises:
        LabError: it contains something else, or its path is too long for the sockets below it.
    """
    if len(os.fsencode(directory)) + MAX_SOCKET > MAX_SOCKET_PATH:
        raise lab_errors.LabError(f"{directory} is too long for the sockets below it; choose a shorter --directory")
    if directory.exists() and any(not entry.name.startswith(MARKER) for entry in directory.iterdir()):
        raise lab_errors.LabError(
            f"{directory} is neither empty nor the directory of a lab; choose another --directory"
        )


def save(layout: Layout) -> None:
    """Write the layout, which makes the directory a lab."""
    directory = layout.directory
    fields = dataclasses.asdict(layout)
    del fields["directory"]
    scratch = directory / f"{MARKER}.new"
    scratch.write_text(json.dumps(fields, indent=2) + "\n")
    scratch.rename(directory / MARKER)
    for path in (layout.certificates, layout.kubeconfigs, layout.processes, layout.logs, layout.etcd, layout.simgpu):
        path.mkdir(exist_ok=True)
    for secret in (layout.certificates, layout.kubeconfigs, layout.etcd):
        secret.chmod(0o700)


def remove(directory: Path) -> None:
    """Delete a lab's files, the layout last, so that an interrupted removal can be repeated."""
    for entry in directory.iterdir():
        if entry.name == MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (directory / MARKER).unlink()
    directory.rmdir()
