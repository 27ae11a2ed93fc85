"""A model for `bench/simulated_time.py`: runs a number of steps, or steps for a time, and prints the steps a second.

    python -m bench.programs.model DEVICE KERNEL DEPTH MAX

With a depth, that many steps are queued ahead, so that a wait for a core does not matter. Once ready, it reads the
number of seconds from stdin.
"""

from __future__ import annotations

import sys
import time

from tests.interposer.cuda_client import Cuda


def main(device: int, name: str, depth: int, most: int) -> None:
    c = Cuda(device=device)
    kernel = c.kernel(name)
    events = [c.made("cuEventCreate", 0) for _ in range(depth + 1)]

    def launch(number: int) -> None:
        c.launch(kernel)
        c.check("cuEventRecord", events[number % len(events)], None)

    print("ready", flush=True)
    seconds = float(sys.stdin.readline())
    begin, steps = time.monotonic(), 0
    for number in range(depth):
        launch(number)
    while steps < most and time.monotonic() < begin + seconds:
        launch(steps + depth)
        c.check("cuEventSynchronize", events[steps % len(events)])
        steps += 1
    print(steps / (time.monotonic() - begin), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
