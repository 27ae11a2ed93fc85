"""Which containerd made the agent's own container, and what its configuration says of devices. Pure.

Several containerds can have files on a node: k3s, RKE2, MicroK8s and k0s bring one of their own beside Docker's. Only
the one that runs the kubelet's containers counts, and the layers of the agent's own container say which it is. A file
is `version = 2` in containerd 1 and `version = 3` in containerd 2, which renames the plugin; of files that `imports`
names, later ones override.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

_PLUGINS: Final = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_STATE: Final = re.compile(r"(/.+?)/io\.containerd\.snapshotter\.v1\..*")  # below it are the layers of containers
_UPPER: Final = "upperdir="


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigLocation:
    """Where a containerd has its configuration on the host. merged: more files, which the distribution merges."""

    main: str
    merged: str = ""


_OWN: Final = ConfigLocation("/etc/containerd/config.toml")
_MICROK8S: Final = ConfigLocation("/var/snap/microk8s/current/args/containerd.toml")
_K0S: Final = ConfigLocation("/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/*.toml")


def _rancher(agent: str) -> ConfigLocation:
    return ConfigLocation(f"{agent}/etc/containerd/config.toml")


def locations(mountinfo: str) -> tuple[ConfigLocation, ...]:
    """Return the files to try, the first that exists counts; from the text of /proc/PID/mountinfo.

    Nothing counts under CRI-O or Docker. Where the container's layers are in no overlay, a distribution's file counts
    more than containerd's usual one.
    """
    layer = _writable_layer(mountinfo)
    if layer is None:
        rancher = (_rancher(f"/var/lib/rancher/{name}/agent") for name in ("k3s", "rke2"))
        return (*rancher, _MICROK8S, _K0S, _OWN)
    state = _STATE.fullmatch(layer)
    if state is None:
        return ()
    directory, name = posixpath.split(state[1])
    if posixpath.basename(directory) == "agent" and name == "containerd":  # k3s' and RKE2's, in any --data-dir
        return (_rancher(directory),)
    if "/snap/microk8s/" in directory:
        return (_MICROK8S,)
    return (_K0S if posixpath.basename(directory) == "k0s" else _OWN,)


def _writable_layer(mountinfo: str) -> str | None:
    """The directory on the host of what the container writes into its root, an overlay."""
    for fields in map(str.split, mountinfo.splitlines()):
        if len(fields) > 4 and fields[4] == "/":
            return next((word.removeprefix(_UPPER) for word in fields[-1].split(",") if word.startswith(_UPPER)), None)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What the files say; None where they say nothing, so that the default of containerd's version counts."""

    enable_cdi: bool | None = None
    default_runtime: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerdFile:
    """One file: what is said after it, and the paths or patterns of the files that it imports."""

    said: Said
    imports: tuple[str, ...] = ()


def read(text: str, earlier: Said, path: str = _OWN.main) -> ContainerdFile:
    """Read the file at `path` on top of `earlier` ones; one that is not TOML says nothing."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):  # tomllib's own error is a ValueError, and so is that of a huge number
        return ContainerdFile(earlier)
    said = earlier
    for name in _PLUGINS:
        plugin = _table(_table(document, "plugins"), name)
        enabled = plugin.get("enable_cdi")
        default = _table(plugin, "containerd").get("default_runtime_name")
        said = Said(
            enabled if isinstance(enabled, bool) else said.enable_cdi,
            default if isinstance(default, str) and default else said.default_runtime,
        )
    imports = document.get("imports")
    listed = [word for word in imports if isinstance(word, str)] if isinstance(imports, list) else []
    folder = posixpath.dirname(path)
    return ContainerdFile(said, tuple(posixpath.normpath(posixpath.join(folder, word)) for word in listed))


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = document.get(key)
    return table if isinstance(table, dict) else {}
