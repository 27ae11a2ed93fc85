"""Kernels that wait for each other, like those of collectives."""

from __future__ import annotations

import sys

from tests.interposer.cuda_client import Cuda


def rank(device: int, name: str) -> None:
    """Run a rank of a gang: a step for each line, with a report."""
    c = Cuda(device=device)
    kernel = c.kernel(name)
    print("ready", flush=True)
    for _ in sys.stdin:
        c.launch(kernel)
        c.check("cuCtxSynchronize")
        print("done", flush=True)
