"""The versions of Kubernetes, container runtimes, kernels and drivers that gpushare needs, and how to read a version.

The preflight rules and the agent compare with the same numbers, so `check` and a node agree.
"""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, ...]

MIN_KUBERNETES: Final = (1, 30)  # ValidatingAdmissionPolicy and matchConditions
MAX_KUBERNETES: Final = (1, 37)  # the newest that was tested or read
MIN_CONTAINERD: Final = (1, 6)  # CRI v1, which the kubelet requires since 1.26
MIN_CONTAINERD_CDI: Final = (1, 7)  # older ones silently ignore CDI
MIN_KERNEL_RESTORE: Final = (5, 9)  # CAP_CHECKPOINT_RESTORE
MIN_KERNEL_DMEM: Final = (6, 14)  # the cgroup controller of device memory
MIN_DRIVER: Final = (520,)  # CUDA 11.8's, the oldest with which the library's table is compared
MIN_DRIVER_MEMORY_LIMITS: Final = (615,)
MIN_OPERATOR_CDI: Final = (25, 10)  # the GPU Operator's: CDI is its default from here on


def parse_version(text: str) -> Version:
    """Return the first version in a text: `containerd://1.7.2-k3s1` → (1, 7, 2)."""
    match = re.search(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def parse_runtime(text: str) -> tuple[str, Version]:
    """Return name and version of a container runtime, from a node's `containerd://2.0.1`."""
    name, _, version = text.partition("://")
    return name, parse_version(version)


def format_version(version: Version) -> str:
    """Return the version as text, such as `1.30`."""
    return ".".join(map(str, version))
