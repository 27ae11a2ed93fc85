"""A mount namespace for each node: its mounts are visible to no other process and go with its last process.

Some paths are constants of the kubelet and of containerd. In the namespace they lead into the node's own directory, so
that several nodes, and a real kubelet of the machine, stay apart.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from lab import addresses, component, daemon_process, lab_layout, node_cgroup, prerequisites

# The kubelet's plugins and state, sockets of containerd's shims, results of CNI calls, container logs; and where
# gpushare's agent keeps what it has on a node, and describes devices; and where a driver in a container has its files.
CONSTANT_PATHS = (
    *("/var/lib/kubelet", "/run/containerd", "/var/lib/cni", "/var/log/containers", "/var/log/pods"),
    *("/var/lib/gpushare", "/run/gpushare", "/run/cdi", "/run/nvidia"),
)
# Where the machine's mounts are shared, what is mounted outside later is seen inside; never the other way round. Pods
# among themselves share as they ask for.
MOUNT = """
mount --make-rshared / || exit 1
base=$1; shift
for path; do mount --bind "$base$path" "$path" || exit 1; done
exec sleep infinity
"""


@dataclass(frozen=True, slots=True)
class NamespaceHolder:
    """Ready once the process that keeps the namespace has mounted everything, and sleeps."""

    records: Path
    name: str

    def answers(self) -> bool:
        """Ask once whether everything is mounted."""
        pid = daemon_process.pid_of(self.name, self.records)
        with contextlib.suppress(OSError):
            return pid is not None and Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
        return False


def cgroup(lab: lab_layout.Layout, node: lab_layout.Node) -> str:
    """Return the cgroup of a node's daemons and shims; its pods are beside it."""
    return f"{lab.cgroup}/{node.name}/system"


def create_directories(lab: lab_layout.Layout) -> None:
    """Make the mount points, outside and in each node's directory; remember which were not there."""
    missing = {path for path in CONSTANT_PATHS if not Path(path).exists()}
    if missing:
        _made_file().write_text(json.dumps(sorted(_made() | missing)))
    for path in CONSTANT_PATHS:
        Path(path).mkdir(parents=True, exist_ok=True)
        for node in lab.nodes:
            inside_directory(lab, node, path).mkdir(parents=True, exist_ok=True)


def remove_directories(lab: lab_layout.Layout) -> None:
    """Remove the mount points that this or an earlier lab made, unless another lab may stand on them."""
    if addresses.others_with_nodes(lab.directory):
        return
    for path in _made():
        with contextlib.suppress(OSError):  # in use by now
            Path(path).rmdir()
    _made_file().unlink(missing_ok=True)


def holder(lab: lab_layout.Layout, node: lab_layout.Node) -> component.Component:
    """Return the process that keeps a node's namespace while its daemons come and go."""
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
    """Enter through any living process of the node: whichever was killed, its pods have the same namespace."""
    for pid in sorted(node_cgroup.members(cgroup(lab, node))):
        if Path(f"/proc/{pid}/exe").exists():  # not a zombie
            return (prerequisites.program("nsenter"), f"--mount=/proc/{pid}/ns/mnt", "--", *argv)
    return None


def _made_file() -> Path:
    """Return the file of all labs together: the last one to end removes what the first one made."""
    return addresses.claims_directory().parent / "made-directories.json"


def _made() -> set[str]:
    return set(json.loads(_made_file().read_text())) if _made_file().exists() else set()


def inside_directory(lab: lab_layout.Layout, node: lab_layout.Node, path: str) -> Path:
    """Return the directory that is one of `CONSTANT_PATHS` to the node's processes."""
    return lab.node_directory(node) / "mounts" / path.removeprefix("/")
