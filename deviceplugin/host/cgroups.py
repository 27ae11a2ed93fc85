"""The cgroups of pods and containers, in cgroup v2.

The kubelet and the container runtime create them. A container can create cgroups below its own only, and no search goes
there, so a tenant cannot add an entry to what is found here or make a search longer.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from deviceplugin.host import kernel_process

MAX_LEVELS: Final = 8  # kind: kubelet.slice/kubelet-kubepods.slice/…-burstable.slice/…, in a container of a node


def is_v2(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def pods(directory: Path, levels: int = MAX_LEVELS) -> dict[str, Path]:
    """Return the cgroup directories of pods by UID."""
    found: dict[str, Path] = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:  # it may just have been removed
        for entry in [entry for entry in entries if entry.is_dir(follow_symlinks=False)]:
            uid = kernel_process.pod_of(entry.name)
            if uid is not None:
                found[uid] = directory / entry.name
            elif levels > 1:
                found |= pods(directory / entry.name, levels - 1)
    return found


def containers(pod: Path) -> dict[str, Path]:
    """Return the cgroup directories of a pod's containers by container ID."""
    found: dict[str, Path] = {}
    with contextlib.suppress(OSError), os.scandir(pod) as entries:
        for entry in entries:
            container_id = kernel_process.container_id_of(entry.name)
            if container_id is not None and entry.is_dir(follow_symlinks=False):
                found[container_id] = pod / entry.name
    return found


def is_populated(directory: Path) -> bool:
    """Whether a process runs in the cgroup or below it. True if unknown, False if the cgroup is gone."""
    try:
        return "populated 0" not in (directory / "cgroup.events").read_text().splitlines()
    except FileNotFoundError:
        return False
    except OSError:
        return directory.exists()
