"""Samples the memory in use on the first GPU, as the driver counts it."""

from __future__ import annotations

import sys
import threading

import pynvml


def most_of_200_looks() -> None:
    """Print the maximum of 200 samples for each line of input."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for _ in sys.stdin:
        print(max(pynvml.nvmlDeviceGetMemoryInfo(handle).used for _ in range(200)), flush=True)


def most_since_the_last_line() -> None:
    """For each line of input, print the maximum since the previous line and the current value."""
    pynvml.nvmlInit()
    handle, asked, most = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Semaphore(0), 0

    def ask_for_each_line() -> None:
        for _ in sys.stdin:
            asked.release()

    threading.Thread(target=ask_for_each_line, daemon=True).start()
    while True:
        now = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        most = max(most, now)
        if asked.acquire(timeout=0.0005):
            print(most, now, flush=True)
            most = 0
