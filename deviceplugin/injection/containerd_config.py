"""What containerd's configuration says of devices, from the text of its files. Pure.

It is `version = 2` in containerd 1 and `version = 3` in containerd 2, which calls the same plugin otherwise; files that
`imports` names count more, the later the more.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

# Where distributions have the file, and a folder of what it imports: of containerd itself, k3s, RKE2, microk8s.
FILES: Final = (
    ("etc/containerd/config.toml", "etc/containerd/conf.d"),
    ("var/lib/rancher/k3s/agent/etc/containerd/config.toml", ""),
    ("var/lib/rancher/rke2/agent/etc/containerd/config.toml", ""),
    ("var/snap/microk8s/current/args/containerd.toml", ""),
)
_PLUGINS: Final = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """None: it says nothing of that, and the default of its version counts."""

    enable_cdi: bool | None = None
    default_runtime: str | None = None


def read(texts: Iterable[str]) -> Said:
    """What these files say together, in the order in which they count; one that cannot be read says nothing."""
    said = Said()
    for text in texts:
        try:
            document = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        for name in _PLUGINS:
            plugin = _table(_table(document, "plugins"), name)
            enabled = plugin.get("enable_cdi")
            default = _table(plugin, "containerd").get("default_runtime_name")
            said = Said(
                enabled if isinstance(enabled, bool) else said.enable_cdi,
                default if isinstance(default, str) and default else said.default_runtime,
            )
    return said


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = document.get(key)
    return table if isinstance(table, dict) else {}
