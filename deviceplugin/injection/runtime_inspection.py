"""Inspects how the agent's own container was created, and how the host's container runtime is configured.

Several containerds can have files on a node: k3s, RKE2, MicroK8s and k0s install their own besides Docker's. Only the
one that runs the kubelet's containers matters, and the layers of the agent's own container identify it. A configuration
file has `version = 2` in containerd 1, and `version = 3` with a renamed plugin in containerd 2. Files from `imports`
override earlier ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import itertools
import os
import posixpath
import re
import stat
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin.agent_settings import AgentSettings
from deviceplugin.injection import driver_root
from deviceplugin.injection.decision import InjectionFacts
from gpushare import contract

_PLUGINS: Final = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_STATE: Final = re.compile(r"(/.+?)/io\.containerd\.snapshotter\.v1\..*")  # the directory above containers' layers
_UPPER: Final = "upperdir="
_NO_DEVICES: Final = ("", "void", "none")
_SELF: Final = Path("/proc/self")
_MAX_FILES: Final = 32
_MAX_BYTES: Final = 256 * 1024
_MAX_ENTRIES: Final = 1000  # per directory


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigLocation:
    """The host path of a containerd configuration. merged: a pattern of files that the distribution merges into it."""

    main: str
    merged: str = ""


_CONTAINERD: Final = ConfigLocation("/etc/containerd/config.toml")
_MICROK8S: Final = ConfigLocation("/var/snap/microk8s/current/args/containerd.toml")
_K0S: Final = ConfigLocation("/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/*.toml")


def _rancher(agent: str) -> ConfigLocation:
    return ConfigLocation(f"{agent}/etc/containerd/config.toml")


def config_locations(mountinfo: str) -> tuple[ConfigLocation, ...]:
    """Return the possible configuration files from the text of /proc/PID/mountinfo; the first one that exists counts.

    Under CRI-O or Docker there are none. If the container's layers are not in an overlay, a distribution's file takes
    precedence over containerd's usual one.
    """
    # the host directory of the container's writable overlay layer
    roots = (fields[-1].split(",") for fields in map(str.split, mountinfo.splitlines()) if fields[4:5] == ["/"])
    layer = next((word.removeprefix(_UPPER) for word in next(roots, []) if word.startswith(_UPPER)), None)
    if layer is None:
        rancher = (_rancher(f"/var/lib/rancher/{name}/agent") for name in ("k3s", "rke2"))
        return (*rancher, _MICROK8S, _K0S, _CONTAINERD)
    state = _STATE.fullmatch(layer)
    if state is None:
        return ()
    directory, name = posixpath.split(state[1])
    if posixpath.basename(directory) == "agent" and name == "containerd":  # k3s and RKE2, with any data directory
        return (_rancher(directory),)
    if "/snap/microk8s/" in directory:
        return (_MICROK8S,)
    return (_K0S if posixpath.basename(directory) == "k0s" else _CONTAINERD,)


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerdConfig:
    """The relevant settings of the files; None for a setting that they leave at containerd's default."""

    enable_cdi: bool | None = None
    default_runtime: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerdFile:
    """The settings after one file, and the paths or patterns that it imports."""

    config: ContainerdConfig
    imports: tuple[str, ...] = ()


def read_containerd_file(text: str, earlier: ContainerdConfig, path: str = _CONTAINERD.main) -> ContainerdFile:
    """Read the file at `path` on top of `earlier` ones; a file that is not TOML changes nothing."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):  # tomllib's error is a ValueError, as is the one for a huge number
        return ContainerdFile(earlier)
    config = earlier
    for name in _PLUGINS:
        plugin = _table(_table(document, "plugins"), name)
        enabled = plugin.get("enable_cdi")
        default = _table(plugin, "containerd").get("default_runtime_name")
        config = ContainerdConfig(
            enabled if isinstance(enabled, bool) else config.enable_cdi,
            default if isinstance(default, str) and default else config.default_runtime,
        )
    imports = document.get("imports")
    listed = [word for word in imports if isinstance(word, str)] if isinstance(imports, list) else []
    folder = posixpath.dirname(path)
    return ContainerdFile(config, tuple(posixpath.normpath(posixpath.join(folder, word)) for word in listed))


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = document.get(key)
    return table if isinstance(table, dict) else {}


def inspect(settings: AgentSettings, environment: Mapping[str, str], *, own: Path = _SELF) -> InjectionFacts:
    """Collect the facts that do not change while this process runs. The driver's library must be loaded already.

    own: this process's directory in /proc.
    """
    mounted = settings.container_driver_root
    mountinfo = (own / "mountinfo").read_text()
    mounts = mount_points(mountinfo)
    config = containerd_configuration(mounted, mountinfo)
    facts = InjectionFacts(
        in_pod=bool(settings.pod_uid),
        driver_requested=environment.get(contract.ENV_VISIBLE_DEVICES, "").strip() not in _NO_DEVICES,
        driver_mounted=is_driver_mounted((own / "maps").read_text(), mounts),
        default_runtime=config.default_runtime,
        cdi_enabled=config.enable_cdi,
    )
    if not facts.in_pod:
        return facts
    problem = ""
    if not is_mounted(settings.cdi_directory, mounts):
        problem = f"--cdi-directory {settings.cdi_directory} is not mounted from the host: add the component cdi"
    elif driver_root.find(mounted, settings.driver_root) is None:
        problem = (
            f"the host's driver is not visible at {mounted}: add the component cdi or driver-root, and set "
            "nvidiaDriverRoot if the driver is in an unusual place"
        )
    return dataclasses.replace(facts, cdi_problem=problem)


def mount_points(mountinfo: str) -> frozenset[str]:
    lines = (line.split() for line in mountinfo.splitlines())
    return frozenset(fields[4] for fields in lines if len(fields) > 4)


def is_driver_mounted(maps: str, mounts: frozenset[str]) -> bool:
    """Whether the loaded driver library, from the text of /proc/PID/maps, is a mounted file.

    Runtimes mount single files; volumes are directories.
    """
    used = {match[1] for line in maps.splitlines() if (match := re.search(r"\s(/\S*/libnvidia-ml\.so[^/]*)$", line))}
    return bool(used & mounts)


def is_mounted(directory: Path, mounts: frozenset[str]) -> bool:
    """Whether a directory or one of its parents is mounted, and so not the container's own."""
    resolved = directory.resolve()
    return any(str(path) in mounts for path in (resolved, *resolved.parents) if path != Path("/"))


def containerd_configuration(host: Path, mountinfo: str) -> ContainerdConfig:
    """Read the configuration of this container's containerd, including imported files.

    At most `_MAX_FILES` files of `_MAX_BYTES` each are read, so deep imports and large directories are bounded.
    """
    for place in config_locations(mountinfo):
        text = _text(host, place.main)
        if text is None:
            continue
        main = read_containerd_file(text, ContainerdConfig(), place.main)
        config, seen = main.config, {place.main}
        pending = deque(_matching(host, (*main.imports, *filter(None, [place.merged]))))
        while pending and len(seen) < _MAX_FILES:
            path = pending.popleft()
            text = _text(host, path) if path not in seen else None
            seen.add(path)
            if text is not None:
                file = read_containerd_file(text, config, path)
                config = file.config
                pending.extend(_matching(host, file.imports))
        return config
    return ContainerdConfig()


def _matching(host: Path, patterns: Iterable[str]) -> list[str]:
    """Return the host files that match these patterns; `*` is a part of a file name, as in containerd's `imports`."""
    names: list[str] = []
    for pattern in itertools.islice(patterns, _MAX_FILES):
        if "*" not in pattern:
            names.append(pattern)
            continue
        folder, name = pattern.rsplit("/", 1)
        with contextlib.suppress(OSError, ValueError), os.scandir(host / folder.lstrip("/")) as listed:
            entries = itertools.islice(listed, _MAX_ENTRIES)
            names += sorted(f"{folder}/{entry.name}" for entry in entries if fnmatch.fnmatchcase(entry.name, name))
    return names[:_MAX_FILES]


def _text(host: Path, path: str) -> str | None:
    """Read a host file; None if it is missing, too long, not a regular file, or not text."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(host / path.lstrip("/"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                data = file.read(_MAX_BYTES + 1)
                return data.decode() if len(data) <= _MAX_BYTES else None
    return None
