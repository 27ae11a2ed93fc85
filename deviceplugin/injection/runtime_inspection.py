"""Sees how the agent's own container was made, and what the host's runtime is configured to do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deviceplugin.agent_settings import AgentSettings
from deviceplugin.cdi import driver_root
from deviceplugin.injection import containerd_config
from deviceplugin.injection.injection_facts import InjectionFacts
from gpushare import contract

_NOTHING: Final = ("", "void", "none")
_SELF: Final = Path("/proc/self")


def look(settings: AgentSettings, environment: Mapping[str, str], *, own: Path = _SELF) -> InjectionFacts:
    """What does not change while this process lives; the driver's library is loaded already.

    own: the process's directory in /proc.
    """
    mounted = settings.container_driver_root
    mounts = mount_points((own / "mountinfo").read_text())
    said = containerd_config.read(_configuration(mounted))
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


def _configuration(host: Path) -> list[str]:
    texts = []
    for name, folder in containerd_config.FILES:
        for path in (host / name, *(sorted((host / folder).glob("*.toml")) if folder else ())):
            try:
                texts.append(path.read_text())
            except (OSError, UnicodeDecodeError):
                continue
    return texts
