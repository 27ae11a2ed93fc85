"""What a container gets that shares a GPU by MPS: where the daemon is, and limits of its own size. Pure.

The daemon's limits are for every process, and a process can only make them tighter. So the daemon allows what the
largest container may have, and each container is told its own size in its environment.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from deviceplugin.mps import limits

CONTAINER_ROOT: Final = "/mps"
CONTAINER_SHM: Final = "/dev/shm"  # noqa: S108 - where CUDA looks for it
PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"
THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


@dataclasses.dataclass(frozen=True, slots=True)
class MpsShare:
    """Shares of one GPU that a container holds: `held` of `replicas`."""

    gpu: str
    memory_bytes: int
    replicas: int
    held: int


def sized(share: MpsShare) -> dict[str, str]:
    """The limits of a container by its shares."""
    percent = limits.thread_percent(share.replicas, shares=share.held)
    mib = limits.memory_mib(share.memory_bytes, replicas=share.replicas, shares=share.held)
    return limited(percent=percent, mib=mib)


def limited(*, percent: int, mib: int | None) -> dict[str, str]:
    """Limits of any size, of the one GPU that the container sees: of multiprocessors, and of memory where one is."""
    memory = {} if mib is None else {MEMORY: f"0={mib}M"}
    return {THREADS: str(percent), **memory}
