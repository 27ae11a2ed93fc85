"""MPS clients run concurrently; other processes take turns with all of them."""

from __future__ import annotations

import ctypes
import sys

from tests.interposer.cuda_client import Cuda


def runs_a_kernel(name: str) -> None:
    """Run a kernel on request, and print how many milliseconds that took by the GPU's clock.

    All work is queued before the word that it waits for is written, so a late process does not delay the GPU.
    """
    c = Cuda()
    kernel, start, end = c.kernel(name), c.made("cuEventCreate", 0), c.made("cuEventCreate", 0)
    word = c.made("cuMemHostAlloc", 4, 0)
    value = ctypes.c_uint32.from_address(word.value or 0)
    value.value = 0
    c.check("cuStreamWaitValue32_v2", None, word, 1, 1)
    c.check("cuEventRecord", start, None)
    c.launch(kernel)
    c.check("cuEventRecord", end, None)
    print("ready", flush=True)
    sys.stdin.readline()
    value.value = 1
    c.check("cuCtxSynchronize")
    elapsed = ctypes.c_float()
    c.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
    print(elapsed.value, flush=True)
