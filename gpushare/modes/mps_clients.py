"""How many processes can share a GPU by MPS. https://docs.nvidia.com/deploy/mps/"""

from __future__ import annotations

from typing import Final

_VOLTA: Final = (7, 0)
_TURING: Final = (7, 5)
MAX: Final = 48  # of any GPU
_MAX_BEFORE: Final = 16


def is_new(compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> bool:
    """Whether each client has its own address space, so that many more fit; as_nvidia: from Turing on, as NVIDIA's
    plugin.
    """
    return compute_capability >= (_TURING if as_nvidia else _VOLTA)


def most(compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> int:
    """Return how many processes can share a GPU with this compute capability."""
    return MAX if is_new(compute_capability, as_nvidia=as_nvidia) else _MAX_BEFORE
