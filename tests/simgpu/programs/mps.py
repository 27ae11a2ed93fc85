"""Clients of MPS run side by side; one that is none takes turns with all of them."""

from __future__ import annotations

import ctypes
import sys

from tests.interposer.cuda_client import Cuda


def runs_a_kernel(name: str) -> None:
    """When it is told to, and says how many milliseconds that took by the GPU's clock."""
    c = Cuda()
    kernel, start, end = c.kernel(name), c.made("cuEventCreate", 0), c.made("cuEventCreate", 0)
    print("ready", flush=True)
    sys.stdin.readline()
    c.check("cuEventRecord", start, None)
    c.launch(kernel)
    c.check("cuEventRecord", end, None)
    c.check("cuCtxSynchronize")
    elapsed = ctypes.c_float()
    c.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
    print(elapsed.value, flush=True)
