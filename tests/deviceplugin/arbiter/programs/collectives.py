"""A tenant of collectives: a step is a kernel on each GPU, which keeps its GPU busy until the others have begun."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import time

from tests.interposer.cuda_client import Cuda

_OVER = 1 << 40


class _Steps:
    """The current step of ranks in separate processes. They begin a step once the first rank has announced it."""

    def __init__(self, path: str, rank: int) -> None:
        self._rank = rank
        descriptor = os.open(path, os.O_RDWR)
        self._said = mmap.mmap(descriptor, 8)
        os.close(descriptor)

    def go_on(self, done: int, until: float) -> bool:
        """Whether there is another step after this many; waits until the first rank has announced it."""
        if self._rank == 0:
            self._said[:] = struct.pack("Q", done + 1 if time.monotonic() < until else _OVER)
        while (number := struct.unpack("Q", self._said[:])[0]) <= done:
            time.sleep(20e-6)
        return bool(number < _OVER)


def steps(
    symbol: str,
    seconds: float,
    order: tuple[int, ...],
    threads: bool,
    kernel: str = "meet2_2ms",
    *,
    rank: int = 0,
    said: str = "",
) -> None:
    """Print the number of steps done. said: a file of eight bytes that ranks in other processes share."""
    c, functions = Cuda(), {}
    for device in order:
        c.use(device)
        functions[device] = c.kernel(kernel)
    shared = _Steps(said, rank) if said else None
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + seconds

    def launch(device: int) -> None:
        c.use(device)
        c.check(symbol, functions[device], 1, 1, 1, 1, 1, 1, 0, None, *[None] * (2 - ("Cooperative" in symbol)))

    def wait(device: int) -> None:
        c.use(device)
        c.check("cuCtxSynchronize")

    done, together, going_on = 0, threading.Barrier(len(order)), True

    def work(device: int) -> None:
        nonlocal done, going_on
        while going_on:
            launch(device)
            wait(device)
            if device == order[0]:
                done += 1
                going_on = time.monotonic() < until
            together.wait()

    if threads:
        workers = [threading.Thread(target=work, args=(device,)) for device in order]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    while not threads and (shared.go_on(done, until) if shared is not None else time.monotonic() < until):
        for device in order:
            launch(device)
        for device in order:
            wait(device)
        done += 1
    print(done)
