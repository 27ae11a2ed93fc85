"""A mount namespace for each node: no other process sees its mounts, and they end with its last process.

Some paths are constants of the kubelet and of containerd. In the namespace they refer to the node's own directory, so
several nodes, and a real kubelet of the machine, do not conflict.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from lab import addresses, component, daemon_process, lab_layout, node_cgroup, prerequisites

# The kubelet's plugins and state, sockets of containerd's shims, results of CNI calls, container logs; the state,
# sockets and CDI files of gpushare's agent; and the driver root of a driver container.
CONSTANT_PATHS = (
    *("/var/lib/kubelet", "/run/containerd", "/var/lib/cni", "/var/log/containers", "/var/log/pods"),
    *("/var/lib/gpushare", "/run/gpushare", "/run/cdi", "/run/nvidia"),
)
# Mounts that are made later outside become visible inside, if they are shared there; mounts inside stay invisible
# outside. Pods get the mount propagation that they request.
MOUNT = """
mount --make-rshared / || exit 1
base=$1; shift
for path; do mount --bind "$base$path" "$path" || exit 1; done
exec sleep infinity
"""


@dataclass(frozen=True, slots=True)
class NamespaceHolder:
    """Ready once the process that keeps the namespace has mounted everything and runs `sleep`."""

    records: Path
    name: str

    def answers(self) -> bool:
        """Check once whether everything is mounted."""
        pid = daemon_process.pid_of(self.name, self.records)
        with contextlib.suppress(OSError):
            return pid is not None and Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
        return False


def cgroup(lab: lab_layout.Layout, node: lab_layout.Node) -> str:
    """Return the cgroup of a node's daemons and shims; its pods' cgroups are siblings."""
    return f"{lab.cgroup}/{node.name}/system"


def create_directories(lab: lab_layout.Layout) -> None:
    """Create the mount points on the machine and in each node's directory; record those that did not exist."""
    missing = {path for path in CONSTANT_PATHS if not Path(path).exists()}
    if missing:
        _made_file().write_text(json.dumps(sorted(_made() | missing)))
    for path in CONSTANT_PATHS:
        Path(path).mkdir(parents=True, exist_ok=True)
        for node in lab.nodes:
            inside_directory(lab, node, path).mkdir(parents=True, exist_ok=True)


def remove_directories(lab: lab_layout.Layout) -> None:
    """Remove the recorded mount points, unless another lab may use them."""
    if addresses.others_with_nodes(lab.directory):
        return
    for path in _made():
        with contextlib.suppress(OSError):  # used by another program by now
            Path(path).rmdir()
    _made_file().unlink(missing_ok=True)


def holder(lab: lab_layout.Layout, node: lab_layout.Node) -> component.Component:
    """Return the process that keeps a node's namespace while its daemons restart."""
    argv = _join(lab, node, ("sleep", "infinity"))
    if argv is None:
        base = lab.node_directory(node) / "mounts"
        unshare = (prerequisites.program("unshare"), "--mount", "--propagation", "slave")
        argv = (*unshare, "sh", "-c", MOUNT, "sh", str(base), *CONSTANT_PATHS)
    name = f"{node.name}.namespace"
    return component.Component(
        daemon_process.Process(name, argv, groups=node_cgroup.joined(cgroup(lab, node))),
        NamespaceHolder(lab.processes, name),
    )


def inside(lab: lab_layout.Layout, node: lab_layout.Node, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs `argv` in a node's mount namespace, where the kubelet's paths are this node's."""
    return _join(lab, node, argv) or argv


def _join(lab: lab_layout.Layout, node: lab_layout.Node, argv: tuple[str, ...]) -> tuple[str, ...] | None:
    """Enter the namespace through any living process of the node; its pods have the same namespace as its daemons."""
    for pid in sorted(node_cgroup.members(cgroup(lab, node))):
        if Path(f"/proc/{pid}/exe").exists():  # not a zombie
            return (prerequisites.program("nsenter"), f"--mount=/proc/{pid}/ns/mnt", "--", *argv)
    return None


def _made_file() -> Path:
    """Return the record of the mount points that labs created; all labs share it, and the last one removes them."""
    return addresses.claims_directory().parent / "made-directories.json"


def _made() -> set[str]:
    return set(json.loads(_made_file().read_text())) if _made_file().exists() else set()


def inside_directory(lab: lab_layout.Layout, node: lab_layout.Node, path: str) -> Path:
    """Return the directory that the node's processes see at `path`, one of `CONSTANT_PATHS`."""
    return lab.node_directory(node) / "mounts" / path.removeprefix("/")
