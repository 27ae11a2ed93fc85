"""Kernels that wait for each other, as those of collectives do."""

from __future__ import annotations

import sys

from tests.interposer.cuda_client import Cuda


def rank(device: int, name: str) -> None:
    """One of a gang: it does a step for each line, and says so."""
    c = Cuda(device=device)
    kernel = c.kernel(name)
    print("ready", flush=True)
    for _ in sys.stdin:
        c.launch(kernel)
        c.check("cuCtxSynchronize")
        print("done", flush=True)
