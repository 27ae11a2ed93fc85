"""Sees how the agent's own container was made, and what the host's runtime is configured to do."""

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
from deviceplugin.cdi import driver_root
from deviceplugin.injection.decision import InjectionFacts
from gpushare import contract

_PLUGINS: Final = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_STATE: Final = re.compile(r"(/.+?)/io\.containerd\.snapshotter\.v1\..*")  # below it are the layers of containers
_UPPER: Final = "upperdir="
_NO_DEVICES: Final = ("", "void", "none")
_SELF: Final = Path("/proc/self")
_MAX_FILES: Final = 32
_MAX_BYTES: Final = 256 * 1024
_MAX_ENTRIES: Final = 1000  # of a directory that is searched


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigLocation:
    """Where a containerd has its configuration on the host. merged: more files, which the distribution merges."""

    main: str
    merged: str = ""


_CONTAINERD: Final = ConfigLocation("/etc/containerd/config.toml")
_MICROK8S: Final = ConfigLocation("/var/snap/microk8s/current/args/containerd.toml")
_K0S: Final = ConfigLocation("/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/*.toml")


def _rancher(agent: str) -> ConfigLocation:
    return ConfigLocation(f"{agent}/etc/containerd/config.toml")


def config_locations(mountinfo: str) -> tuple[ConfigLocation, ...]:
    """Return the files to try, the first that exists counts; from the text of /proc/PID/mountinfo.

    Nothing counts under CRI-O or Docker. Where the container's layers are in no overlay, a distribution's file counts
    more than containerd's usual one.
    """
    layer = _writable_layer(mountinfo)
    if layer is None:
        rancher = (_rancher(f"/var/lib/rancher/{name}/agent") for name in ("k3s", "rke2"))
        return (*rancher, _MICROK8S, _K0S, _CONTAINERD)
    state = _STATE.fullmatch(layer)
    if state is None:
        return ()
    directory, name = posixpath.split(state[1])
    if posixpath.basename(directory) == "agent" and name == "containerd":  # k3s' and RKE2's, in any --data-dir
        return (_rancher(directory),)
    if "/snap/microk8s/" in directory:
        return (_MICROK8S,)
    return (_K0S if posixpath.basename(directory) == "k0s" else _CONTAINERD,)


def _writable_layer(mountinfo: str) -> str | None:
    """The directory on the host of what the container writes into its root, an overlay."""
    for fields in map(str.split, mountinfo.splitlines()):
        if len(fields) > 4 and fields[4] == "/":
            return next((word.removeprefix(_UPPER) for word in fields[-1].split(",") if word.startswith(_UPPER)), None)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerdConfig:
    """What the files say; None where they say nothing, so that the default of containerd's version counts."""

    enable_cdi: bool | None = None
    default_runtime: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerdFile:
    """One file: what is config after it, and the paths or patterns of the files that it imports."""

    config: ContainerdConfig
    imports: tuple[str, ...] = ()


def read_containerd_file(text: str, earlier: ContainerdConfig, path: str = _CONTAINERD.main) -> ContainerdFile:
    """Read the file at `path` on top of `earlier` ones; one that is not TOML says nothing."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):  # tomllib's own error is a ValueError, and so is that of a huge number
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
    """What does not change while this process lives; the driver's library is loaded already.

    own: the process's directory in /proc.
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
    return dataclasses.replace(facts, cdi_problem=_cdi_problem(settings, mounts) if facts.in_pod else "")


def mount_points(mountinfo: str) -> frozenset[str]:
    """Where something is mounted, from the text of /proc/PID/mountinfo."""
    lines = (line.split() for line in mountinfo.splitlines())
    return frozenset(fields[4] for fields in lines if len(fields) > 4)


def is_driver_mounted(maps: str, mounts: frozenset[str]) -> bool:
    """Whether the driver's library that is in use is a file that somebody mounted, from the text of /proc/PID/maps.

    Runtimes mount file by file, and not a directory, as volumes are.
    """
    used = {match[1] for line in maps.splitlines() if (match := re.search(r"\s(/\S*/libnvidia-ml\.so[^/]*)$", line))}
    return bool(used & mounts)


def is_mounted(directory: Path, mounts: frozenset[str]) -> bool:
    """Whether a directory, or one that it is in, is mounted and not the container's own."""
    resolved = directory.resolve()
    return any(str(path) in mounts for path in (resolved, *resolved.parents) if path != Path("/"))


def _cdi_problem(settings: AgentSettings, mounts: frozenset[str]) -> str:
    if not is_mounted(settings.cdi_directory, mounts):
        return f"--cdi-directory {settings.cdi_directory} is not mounted from the host: add the component cdi"
    mounted = settings.container_driver_root
    if driver_root.find(mounted, settings.driver_root) is None:
        return (
            f"the host's driver is not visible at {mounted}: add the component cdi or driver-root, and set "
            "nvidiaDriverRoot if the driver is in an unusual place"
        )
    return ""


def containerd_configuration(host: Path, mountinfo: str) -> ContainerdConfig:
    """What the configuration of this container's containerd says, with the files that it imports.

    Reads at most `_MAX_FILES` files of `_MAX_BYTES`, so imports can be as deep as that and no directory too large.
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
    """The files of the host that these name: `*` stands for a part of a file's name, as in containerd's `imports`."""
    names: list[str] = []
    for pattern in itertools.islice(patterns, _MAX_FILES):
        if "*" not in pattern:
            names.append(pattern)
            continue
        folder, name = pattern.rsplit("/", 1)
        with contextlib.suppress(OSError, ValueError), os.scandir(_on_host(host, folder)) as listed:
            entries = itertools.islice(listed, _MAX_ENTRIES)
            names += sorted(f"{folder}/{entry.name}" for entry in entries if fnmatch.fnmatchcase(entry.name, name))
    return names[:_MAX_FILES]


def _text(host: Path, path: str) -> str | None:
    """A file of the host; None if it is missing, too long, no regular file, or no text."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(_on_host(host, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                data = file.read(_MAX_BYTES + 1)
                return data.decode() if len(data) <= _MAX_BYTES else None
    return None


def _on_host(host: Path, path: str) -> Path:
    return host / path.lstrip("/")
