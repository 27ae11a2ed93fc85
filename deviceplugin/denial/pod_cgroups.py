"""The cgroups of pods, in the hierarchy of cgroup v2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deviceplugin.host import identity

MAX_LEVELS: Final = 8  # kind: kubelet.slice/kubelet-kubepods.slice/…-burstable.slice/…, in a container of a node


def is_version_two(root: Path) -> bool:
    """Whether it is a directory of cgroup v2."""
    return (root / "cgroup.controllers").exists()


def of_pods(root: Path) -> dict[str, Path]:
    """The directories of the pods below, by their UIDs."""
    return dict(_below(root, MAX_LEVELS))


def _below(directory: Path, levels: int) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it has just gone
    for name in names:
        uid = identity.pod_of(name)
        if uid is not None:
            yield uid, directory / name
        elif levels > 1:
            yield from _below(directory / name, levels - 1)
