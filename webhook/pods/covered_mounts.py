"""Covered mounts: which of a pod's volumes would lie over what the agent mounts into its containers. Pure.

The kubelet lists the agent's mounts before the pod's, and of two on one path the later lies on top. A volume above ours
is no better: who can write into it can put a symbolic link where ours will be mounted, and something else there later.
Only above the arbiter's directory many honest pods have one (an emptyDir on /run); who plays with that one is a program
that means to get around its limits, and those are the audit's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract, pod

# As most images have them: what is mounted on the first is on the second.
_LINKS: Final = (("/var/run", "/run"), ("/lib", "/usr/lib"))
_DIRECTORIES: Final = (contract.CONTAINER_ARBITER_DIRECTORY, posixpath.dirname(contract.CONTAINER_LIBRARY))
_OURS: Final = (*_DIRECTORIES, contract.CONTAINER_PRELOAD_FILE, contract.CONTAINER_PRELOAD_FILE_OF_NIX)
_FREE: Final = frozenset({posixpath.dirname(contract.CONTAINER_ARBITER_DIRECTORY)})
_LISTED: Final = (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath"))


def over_ours(manifest: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Container, path as written, and which path of ours it would cover, of the first such; None if there is none."""
    ephemeral = (manifest.get("spec") or {}).get("ephemeralContainers") or []
    for container in (*pod.containers(manifest), *pod.init_containers(manifest), *ephemeral):
        for path in _paths(container):
            ours = covered(path)
            if ours is not None:
                return str(container.get("name")), path, ours
    return None


def covered(path: str) -> str | None:
    """The path of ours that a mount on this one would cover, be below, or be above; None if there is none."""
    clean = posixpath.normpath("/" + path.lstrip("/"))
    for link, target in _LINKS:
        if _is_in(clean, link):
            clean = target + clean.removeprefix(link)
    return next((path for path in _OURS if _is_in(clean, path) or (clean not in _FREE and _is_in(path, clean))), None)


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _paths(container: Mapping[str, Any]) -> Iterator[str]:
    for listed, key in _LISTED:
        for mount in container.get(listed) or []:
            yield str(mount.get(key) or "/")
