"""Helpers for programs that launch: a kernel of some microseconds, a graph with it, and `launch` with any function."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from tests.interposer.cuda_client import Cuda

PTR = ctypes.c_void_p
DIMENSIONS = tuple((name, ctypes.c_uint) for name in "abcdefg")


class Config(ctypes.Structure):
    _fields_ = (*DIMENSIONS, ("stream", PTR), ("attributes", PTR), ("count", ctypes.c_uint))


class Launch(ctypes.Structure):
    _fields_ = (("function", PTR), *DIMENSIONS, ("stream", PTR), ("parameters", PTR))


def kernel(c: Cuda, us: int = 1000) -> PTR:
    return c.kernel(f"k_{us}us")


def graph_of(c: Cuda, function: PTR) -> PTR:
    stream, graph = c.made("cuStreamCreate", 0), PTR()
    c.check("cuStreamBeginCapture_v2", stream, 0)
    launch(c, function, "cuLaunchKernel", stream)
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    return c.made("cuGraphInstantiateWithFlags", graph, 0)


def launch(c: Cuda, function: PTR, symbol: str = "cuLaunchKernel", stream: PTR | None = None) -> int:
    stream = stream or PTR()
    if symbol.startswith("cuGraphLaunch"):
        return c.call(symbol, function, stream)
    if symbol.startswith("cuLaunchKernelEx"):
        config = Config(1, 1, 1, 1, 1, 1, 0, stream)
        return c.call(symbol, ctypes.byref(config), function, PTR(), PTR())
    if symbol.endswith("MultiDevice"):
        return c.call(symbol, ctypes.byref(Launch(function, 1, 1, 1, 1, 1, 1, 0, stream)), 1, 0)
    if symbol == "cuLaunch":
        return c.call(symbol, function)
    if symbol.startswith("cuLaunchGrid"):
        return c.call(symbol, function, 1, 1, *([stream] if symbol.endswith("Async") else []))
    return c.call(symbol, function, 1, 1, 1, 1, 1, 1, 0, stream, PTR(), PTR())


def say(*words: object) -> None:
    print(*words, flush=True)


def two_long_kernels(c: Cuda, stream: PTR | None = None, after: Callable[[], Any] | None = None) -> None:
    function = kernel(c, 300_000)
    launch(c, function, "cuLaunchKernel", stream)
    say("launched", time.monotonic())
    launch(c, function, "cuLaunchKernel", stream)
    if after:
        after()
    say("again")
    input()


def nothing_else() -> None:
    two_long_kernels(Cuda())
