"""A tenant of collectives: a step is a kernel on each GPU; each keeps its GPU busy until the others have begun."""

from __future__ import annotations

import sys
import threading
import time

from tests.interposer.cuda_client import Cuda


def steps(symbol: str, seconds: float, order: tuple[int, ...], threads: bool) -> None:
    """Says how many it did."""
    c, functions = Cuda(), {}
    for device in order:
        c.use(device)
        functions[device] = c.kernel("meet2_2ms")
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + seconds

    def launch(device: int) -> None:
        c.use(device)
        c.check(symbol, functions[device], 1, 1, 1, 1, 1, 1, 0, None, *[None] * (2 - ("Cooperative" in symbol)))

    def wait(device: int) -> None:
        c.use(device)
        c.check("cuCtxSynchronize")

    done, both, going_on = 0, threading.Barrier(2), True

    def rank(device: int) -> None:
        nonlocal done, going_on
        while going_on:
            launch(device)
            wait(device)
            if device == order[0]:
                done += 1
                going_on = time.monotonic() < until
            both.wait()

    if threads:
        ranks = [threading.Thread(target=rank, args=(device,)) for device in order]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    while not threads and time.monotonic() < until:
        for device in order:
            launch(device)
        for device in order:
            wait(device)
        done += 1
    print(done)
