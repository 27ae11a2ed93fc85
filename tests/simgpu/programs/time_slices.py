"""Processes take turns on a GPU like contexts on real hardware: time slices, the cost of a switch, killed processes."""

from __future__ import annotations

import ctypes
import signal
import time

from tests.interposer.cuda_client import Cuda


def say(*words: object) -> None:
    print(*words, flush=True)


def until_done(c: Cuda, began: float | None = None) -> float:
    """Return how many milliseconds it took to wait for the kernels."""
    began = began or time.monotonic()
    c.check("cuCtxSynchronize")
    return (time.monotonic() - began) * 1000


def queue(milliseconds: int) -> None:
    """Wait for a line, queue this much work in kernels of 10 ms, and print when they started and how long they took.

    Times are by the GPU's clock, which does not depend on when the process wakes up.
    """
    c = Cuda()
    function, took = c.kernel("k_10ms"), ctypes.c_float()
    start, end = c.made("cuEventCreate", 0), c.made("cuEventCreate", 0)
    say("ready")
    input()
    began = time.monotonic()
    c.check("cuEventRecord", start, None)
    for _ in range(milliseconds // 10):
        c.launch(function)
    c.check("cuEventRecord", end, None)
    say("queued")
    c.check("cuCtxSynchronize")
    c.check("cuEventElapsedTime", ctypes.byref(took), start, end)
    say(took.value, began * 1000)


def events() -> None:
    c = Cuda()
    function, elapsed = c.kernel("k_10ms"), ctypes.c_float()
    events = [c.made("cuEventCreate", 0) for _ in range(3)]
    c.launch(c.kernel("k_300ms"))  # everything else is queued behind it
    for event in events:
        c.check("cuEventRecord", event, None)
        for _ in range(3):
            c.launch(function)
    until_done(c)
    time.sleep(0.05)
    for first, second in ((0, 1), (1, 2), (0, 2)):
        c.check("cuEventElapsedTime", ctypes.byref(elapsed), events[first], events[second])
        assert abs(elapsed.value - 30 * (second - first)) < 1, elapsed.value
    say("ready")


def collective() -> None:
    c = Cuda()
    functions = []
    for device in (0, 1):
        c.use(device)
        functions.append(c.kernel("meet2_10ms"))
    say("ready")
    for _ in range(2):
        for device in (0, 1):
            input()
            c.use(device)
            began = time.monotonic()
            c.launch(functions[device])
            say("launched")
        say(until_done(c, began))


def launches_for_ever() -> None:
    c = Cuda()
    function = c.kernel("k_1us")
    address = c.address("cuLaunchKernel") or 0
    pointer = ctypes.c_void_p
    launch_fast = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer)(address)
    say("ready")
    while True:
        launch_fast(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)


def steps() -> None:
    c = Cuda()
    signal.alarm(60)
    function = c.kernel("k_100us")
    say("ready")
    while input() == "":
        c.launch(function)
        say(until_done(c))
