"""How much of a GPU each share gets under MPS, and whether it takes as many clients. Pure.

MPS counts processes, not pods: its limits hold for each client process.
https://docs.nvidia.com/deploy/mps/
"""

from __future__ import annotations

from typing import Final

from gpushare import errors
from gpushare.modes import mps_clients

_MIB: Final = 1 << 20
_THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class LimitError(errors.GpushareError):
    """More shares than a GPU takes clients, or a size that cannot be."""


def check_replicas(replicas: int, compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> None:
    """Raise LimitError if a GPU cannot be shared by so many."""
    most = mps_clients.max_clients(compute_capability, as_nvidia=as_nvidia)
    if replicas > most:
        raise LimitError(f"maximum allowed replicas exceeded: {replicas} > {most}: lower replicas under sharing.mps")


def memory_mib(total_bytes: int, *, replicas: int, shares: int = 1) -> int | None:
    """What `shares` of `replicas` may hold, in whole MiB; None where the GPU's memory is unknown."""
    return shares * (total_bytes // replicas // _MIB) if total_bytes > 0 else None


def thread_percent(replicas: int, *, shares: int = 1) -> int:
    """The part of the GPU's multiprocessors that `shares` of `replicas` may use, in whole per cent, at least 1."""
    return max(1, min(100, 100 * shares // replicas))


def of_container(total_bytes: int, *, replicas: int, held: int) -> dict[str, str]:
    """The variables by which a container that holds so many of the replicas is told its own size.

    The daemon's limits are for every process, and a process can only make them tighter: the daemon allows what the
    largest container may have.
    """
    mib = memory_mib(total_bytes, replicas=replicas, shares=held)
    memory = {} if mib is None else {_MEMORY: f"0={mib}M"}
    return {_THREADS: str(thread_percent(replicas, shares=held)), **memory}
