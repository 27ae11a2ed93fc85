"""Programs that run while their node's agent is replaced."""

from __future__ import annotations

import sys

from tests.interposer.cuda_client import SUCCESS, Cuda


def takes_and_launches() -> None:
    """For each input line, allocate so many bytes, try one more, launch, and print the results."""
    c = Cuda()
    held: list[int] = []
    kernel = c.kernel("k_100us")
    print("ready", flush=True)
    for line in sys.stdin:
        while held:
            assert c.free(held.pop()) == SUCCESS
        result, pointer = c.allocate(int(line))
        if result == SUCCESS:
            held.append(pointer)
        more, pointer = c.allocate(1)
        if more == SUCCESS:
            held.append(pointer)
        for _ in range(10):
            c.launch(kernel)
        c.check("cuCtxSynchronize")
        print(result, more, c.info()[1], flush=True)


def holds() -> None:
    c = Cuda()
    print("ready", flush=True)
    for line in sys.stdin:
        print(c.allocate(int(line))[0], flush=True)


def looks() -> None:
    c = Cuda()
    print(c.allocate(1)[0], c.info())
