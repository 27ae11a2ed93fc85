"""Versions as comparable tuples of numbers; an empty tuple is not a version."""

from __future__ import annotations

import re
from typing import Final

KUBERNETES_OLDEST: Final = (1, 30)  # ValidatingAdmissionPolicy and matchConditions
KUBERNETES_NEWEST: Final = (1, 37)  # that was tried or read
CONTAINERD_OLDEST: Final = (1, 6)  # CRI v1, which the kubelet has required since 1.26
CONTAINERD_CDI: Final = (1, 7)  # older ones silently ignore CDI
KERNEL_RESTORE: Final = (5, 9)  # CAP_CHECKPOINT_RESTORE
KERNEL_DMEM: Final = (6, 14)  # the cgroup controller of device memory
DRIVER_OLDEST: Final = (520,)  # of CUDA 11.8, the oldest that the library's table is compared with
DRIVER_MEMORY_LIMITS: Final = (615,)
OPERATOR_CDI: Final = (25, 10)  # of the GPU Operator: CDI by default from here on

Version = tuple[int, ...]


def of(text: str) -> Version:
    """Return the first version in a text: `containerd://1.7.2-k3s1` → (1, 7, 2)."""
    match = re.search(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def runtime(text: str) -> tuple[str, Version]:
    """Return name and version of a container runtime, from a Node's `containerd://2.0.1`."""
    name, _, version = text.partition("://")
    return name, of(version)


def shown(version: Version) -> str:
    """Return the version as people write it."""
    return ".".join(map(str, version))
