"""Programs that share GPUs with the program under test."""

from __future__ import annotations

import sys

from tests.interposer.cuda_client import Cuda


def idle() -> None:
    Cuda()
    print("ready", flush=True)
    sys.stdin.readline()


def busy() -> None:
    c = Cuda()
    kernel = c.kernel("spin_2ms")
    print("ready", flush=True)
    while True:
        c.launch(kernel, None)
        c.check("cuCtxSynchronize")
