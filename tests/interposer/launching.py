"""Programs that launch, run in a container of the tests, and what is said to them and heard of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpushare import contract
from tests.interposer.container import CLIENT_PRELUDE, Container, finishing
from tests.interposer.reference_arbiter import Misbehaviour, ReferenceArbiter

STINGY = Misbehaviour(grants=False)  # the test gives the leases
OPEN, REVOKE, WANT = contract.MESSAGE_OPEN, contract.MESSAGE_REVOKE, contract.MESSAGE_WANT
CLOSED, RELEASED = contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED

# What every client below has: a kernel of `us` microseconds, and `launch`, by any of the functions.
PRELUDE = """
import sys, threading, time
PTR = ctypes.c_void_p
class Config(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in "abcdefg"] + [("stream", PTR), ("attributes", PTR), ("count", ctypes.c_uint)]
class Launch(ctypes.Structure):
    _fields_ = [("function", PTR)] + [(n, ctypes.c_uint) for n in "abcdefg"] + [("stream", PTR), ("parameters", PTR)]
def kernel(c, us=1000):
    module, function = PTR(), PTR()
    c.check("cuModuleLoadData", ctypes.byref(module), b"")
    c.check("cuModuleGetFunction", ctypes.byref(function), module, f"k_{us}us".encode())
    return function
def graph_of(c, function):
    stream, graph, exec_ = PTR(), PTR(), PTR()
    c.check("cuStreamCreate", ctypes.byref(stream), 0)
    c.check("cuStreamBeginCapture_v2", stream, 0)
    launch(c, function, "cuLaunchKernel", stream)
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    c.check("cuGraphInstantiateWithFlags", ctypes.byref(exec_), graph, 0)
    return exec_
def launch(c, function, symbol="cuLaunchKernel", stream=None):
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
def say(*words):
    print(*words, flush=True)
"""


@contextmanager
def client(container: Container, code: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has the prelude, gone at the end of the block."""
    with finishing(container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code])) as process:
        yield process


def line(process: subprocess.Popen[str]) -> str:
    """What it says next."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def goes_on(process: subprocess.Popen[str]) -> None:
    """Let it go on from an `input()`."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ends_well(process: subprocess.Popen[str]) -> str:
    """Let it go on to its end; what it has said since."""
    output, errors = process.communicate("\n", timeout=20)
    assert process.returncode == 0, output + errors
    return output.strip()


def waits_for_both_kernels(
    container: Container, arbiter: ReferenceArbiter, before: str = "", stream: str = "None", after: str = ""
) -> None:
    """A program does `before`, launches two long kernels, and loses its lease: it gives it back when both have ended.

    They are launched in `stream`; then it does `after`.

    arbiter: STINGY.
    """
    code = f"""
c = Cuda()
{before}
function = kernel(c, 150000)
launch(c, function, "cuLaunchKernel", {stream})
say("launched", time.monotonic())
launch(c, function, "cuLaunchKernel", {stream})
{after}
say("again")
input()
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, 0, 1)
        launched = float(line(process).split()[1])
        line(process)
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        assert time.monotonic() - launched > 0.25
        ends_well(process)
