"""The number of processes that can share a GPU by MPS. https://docs.nvidia.com/deploy/mps/"""

from __future__ import annotations

from typing import Final

_VOLTA: Final = (7, 0)
_TURING: Final = (7, 5)
MAX_CLIENTS: Final = 48  # on any GPU
_MAX_CLIENTS_BEFORE_VOLTA: Final = 16


def is_new(compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> bool:
    """Whether clients have separate address spaces, so that many more fit; as_nvidia: from Turing on, as NVIDIA's
    plugin does.
    """
    return compute_capability >= (_TURING if as_nvidia else _VOLTA)


def max_clients(compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> int:
    """Return how many processes can share a GPU with this compute capability."""
    return MAX_CLIENTS if is_new(compute_capability, as_nvidia=as_nvidia) else _MAX_CLIENTS_BEFORE_VOLTA
