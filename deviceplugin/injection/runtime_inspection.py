"""Sees how the agent's own container was made, and what the host's runtime is configured to do."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.agent_settings import AgentSettings
from deviceplugin.cdi import driver_root
from deviceplugin.injection import containerd_config
from deviceplugin.injection.containerd_config import Said
from deviceplugin.injection.injection_facts import InjectionFacts
from gpushare import contract

_NOTHING: Final = ("", "void", "none")
_SELF: Final = Path("/proc/self")
_MAX_FILES: Final = 32
_MAX_BYTES: Final = 256 * 1024
_MAX_ENTRIES: Final = 1000  # of a directory that is searched


def look(settings: AgentSettings, environment: Mapping[str, str], *, own: Path = _SELF) -> InjectionFacts:
    """What does not change while this process lives; the driver's library is loaded already.

    own: the process's directory in /proc.
    """
    mounted = settings.container_driver_root
    mountinfo = (own / "mountinfo").read_text()
    mounts = mount_points(mountinfo)
    said = configuration(mounted, mountinfo)
    facts = InjectionFacts(
        in_pod=bool(settings.pod_uid),
        asked=environment.get(contract.ENV_VISIBLE_DEVICES, "").strip() not in _NOTHING,
        driver_mounted=is_driver_mounted((own / "maps").read_text(), mounts),
        default_runtime=said.default_runtime,
        cdi_enabled=said.enable_cdi,
    )
    return dataclasses.replace(facts, undescribed=_undescribed(settings, mounts) if facts.in_pod else "")


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


def _undescribed(settings: AgentSettings, mounts: frozenset[str]) -> str:
    if not is_mounted(settings.cdi_directory, mounts):
        return f"--cdi-directory {settings.cdi_directory} is not mounted from the host: add the component cdi"
    mounted = settings.container_driver_root
    if driver_root.find(mounted, settings.driver_root) is None:
        return (
            f"no driver of the host is seen at {mounted}: add the component cdi or driver-root, and name "
            "nvidiaDriverRoot where the driver is in no usual place"
        )
    return ""


def configuration(host: Path, mountinfo: str) -> Said:
    """What the configuration of this container's containerd says, with the files that it imports.

    Reads at most `_MAX_FILES` files of `_MAX_BYTES`, so imports can be as deep as that and no directory too large.
    """
    for place in containerd_config.locations(mountinfo):
        text = _text(host, place.main)
        if text is None:
            continue
        main = containerd_config.read(text, Said(), place.main)
        said, read = main.said, {place.main}
        pending = deque(_matching(host, (*main.imports, *filter(None, [place.merged]))))
        while pending and len(read) < _MAX_FILES:
            path = pending.popleft()
            text = _text(host, path) if path not in read else None
            read.add(path)
            if text is not None:
                file = containerd_config.read(text, said, path)
                said = file.said
                pending.extend(_matching(host, file.imports))
        return said
    return Said()


def _matching(host: Path, patterns: Iterable[str]) -> list[str]:
    """The files of the host that these name: `*` stands for a part of a file's name, as in containerd's `imports`."""
    names: list[str] = []
    for pattern in itertools.islice(patterns, _MAX_FILES):
        if "*" not in pattern:
            names.append(pattern)
            continue
        folder, name = pattern.rsplit("/", 1)
        with contextlib.suppress(OSError, ValueError), os.scandir(_seen(host, folder)) as listed:
            entries = itertools.islice(listed, _MAX_ENTRIES)
            names += sorted(f"{folder}/{entry.name}" for entry in entries if fnmatch.fnmatchcase(entry.name, name))
    return names[:_MAX_FILES]


def _text(host: Path, path: str) -> str | None:
    """A file of the host; None if it is missing, too long, no regular file, or no text."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(_seen(host, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                data = file.read(_MAX_BYTES + 1)
                return data.decode() if len(data) <= _MAX_BYTES else None
    return None


def _seen(host: Path, path: str) -> Path:
    return host / path.lstrip("/")
