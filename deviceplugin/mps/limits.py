"""The limits of MPS clients: how much of a GPU each replica gets, and how many clients a GPU takes. Pure.

MPS does not know pods: its limits hold for each client process.
https://docs.nvidia.com/deploy/mps/
"""

from __future__ import annotations

from typing import Final

from gpushare import errors
from gpushare.modes import hardware_gpu

_MIB: Final = 1 << 20
_THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class LimitError(errors.GpushareError):
    """A GPU is shared by more replicas than it takes clients."""


def check_replicas(replicas: int, compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> None:
    """Raise LimitError if a GPU cannot be shared by this many replicas."""
    most = hardware_gpu.max_mps_clients(compute_capability, as_nvidia=as_nvidia)
    if replicas > most:
        raise LimitError(f"maximum allowed replicas exceeded: {replicas} > {most}: lower replicas under sharing.mps")


def memory_mib(total_bytes: int, *, replicas: int, shares: int = 1) -> int | None:
    """Return the memory limit of `shares` out of `replicas`, in whole MiB; None if the GPU's memory is unknown."""
    return shares * (total_bytes // replicas // _MIB) if total_bytes > 0 else None


def thread_percent(replicas: int, *, shares: int = 1) -> int:
    """Return the part of the multiprocessors for `shares` out of `replicas`, in whole per cent, at least 1."""
    return max(1, min(100, 100 * shares // replicas))


def container_environment(total_bytes: int, *, replicas: int, held: int) -> dict[str, str]:
    """Return the environment variables that limit a container with this many replicas.

    The daemon's limits are for every process, and a process can only tighten them. So the daemon allows what the
    largest container can have.
    """
    mib = memory_mib(total_bytes, replicas=replicas, shares=held)
    memory = {} if mib is None else {_MEMORY: f"0={mib}M"}
    return {_THREADS: str(thread_percent(replicas, shares=held)), **memory}
