"""A CDI specification as a document: https://github.com/cncf-tags/container-device-interface, version 0.5.0. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = "0.5.0"  # the first with device names that begin with a digit; containerd 1.7 and CRI-O read it
ALL: Final = "all"
# Whatever else reads the variable (NVIDIA's runtime) shall not add devices to those of the specification.
VOID: Final = "NVIDIA_VISIBLE_DEVICES=void"
_MOUNT_OPTIONS: Final = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


@dataclasses.dataclass(frozen=True, slots=True)
class Edits:
    """What is done to a container.

    environment: `NAME=value`; device_nodes, mounts: paths in the container and on the host, in that order.
    folders: of libraries that the container's loader has to be told of, by `hook`, a program of the host.
    """

    environment: tuple[str, ...] = ()
    device_nodes: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    hook: str = ""


NOTHING: Final = Edits()


def gpus(devices: Mapping[str, tuple[tuple[str, str], ...]], *, common: Edits) -> dict[str, Edits]:
    """The devices of a kind of GPUs, by name, and all of them together; each name has the device nodes of its own."""
    own = set(common.device_nodes)
    named = {
        name: Edits(device_nodes=tuple(node for node in nodes if node not in own)) for name, nodes in devices.items()
    }
    every = dict.fromkeys(node for edits in named.values() for node in edits.device_nodes)
    return {**named, ALL: Edits(device_nodes=tuple(every))} if named else {}


def document(kind: str, devices: Mapping[str, Edits], *, common: Edits = NOTHING) -> dict[str, Any]:
    """The specification of a kind, as JSON; common: what every container with one of its devices gets."""
    edits = _edits(common)
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _edits(edits)} for name, edits in sorted(devices.items())],
        **({"containerEdits": edits} if edits else {}),
    }


def _edits(edits: Edits) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if edits.environment:
        fields["env"] = list(edits.environment)
    if edits.device_nodes:
        fields["deviceNodes"] = [
            {"path": inside} if inside == outside else {"path": inside, "hostPath": outside}
            for inside, outside in edits.device_nodes
        ]
    if edits.mounts:
        fields["mounts"] = [
            {"containerPath": inside, "hostPath": outside, "options": _MOUNT_OPTIONS}
            for inside, outside in edits.mounts
        ]
    if edits.hook and edits.folders:
        folders = [word for folder in edits.folders for word in ("--folder", folder)]
        arguments = [edits.hook.rpartition("/")[2], *_subcommand(edits.hook), "update-ldcache", *folders]
        fields["hooks"] = [{"hookName": "createContainer", "path": edits.hook, "args": arguments}]
    return fields


def _subcommand(hook: str) -> tuple[str, ...]:
    """`nvidia-ctk` has its hooks below `hook`; `nvidia-cdi-hook` is nothing else."""
    return ("hook",) if hook.endswith("nvidia-ctk") else ()
