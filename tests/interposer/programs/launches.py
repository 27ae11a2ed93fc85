"""Programs that launch with every function that starts work on the GPU."""

from __future__ import annotations

import ctypes
import os
import time

from tests.interposer.cuda_client import MIB, PER_THREAD, QUERIES, Cuda
from tests.interposer.programs.launching import graph_of, kernel, launch, say


def every_launch(names: list[str], proc: bool) -> None:
    for name in names:
        QUERIES[name] = (name.removesuffix("_ptsz"), 12000, PER_THREAD if name.endswith("_ptsz") else 0)
    QUERIES["cuStreamBeginCapture_v2"] = ("cuStreamBeginCapture", 12000, 0)
    c = Cuda(proc=proc)
    function = kernel(c)
    graph = graph_of(c, function)
    assert len({c.address(name) for name in names}) == len(names)
    say("captured")
    for name in names:
        input()
        result = launch(c, graph if "Graph" in name else function, name)
        say(name, result)
    input()


def launches_twice() -> None:
    c = Cuda()
    function = kernel(c, 1000)
    assert launch(c, function) == 0
    say("idle")
    input()
    assert launch(c, function) == 0


def launches_in_a_row() -> None:
    c = Cuda()
    function = kernel(c, 20_000)
    for _ in range(30):
        launch(c, function)
    began = time.monotonic()
    c.check("cuCtxSynchronize")
    say(time.monotonic() - began)


def two_gpus() -> None:
    c = Cuda()
    first = kernel(c)
    c.use(1)
    second = kernel(c)
    c.use(0)
    assert launch(c, first) == 0
    say("first")
    c.use(1)
    assert launch(c, second) == 0
    say("second")


def ends_a_context() -> None:
    c = Cuda()
    context = c.made("cuCtxCreate_v2", 0, 0)
    function = kernel(c, 1000)
    assert launch(c, function) == 0
    c.check("cuCtxDestroy_v2", context)
    say("gone")
    input()
    c.use(0)
    assert launch(c, kernel(c, 1000)) == 0


def launches_for_a_second() -> None:
    c = Cuda()
    function = kernel(c, 1000)
    launch(c, function)
    say("running")
    input()
    began, done = time.monotonic(), 0
    while time.monotonic() - began < 1:
        launch(c, function)
        c.check("cuCtxSynchronize")
        done += 1
    say(done)


def moments_of_launches() -> None:
    c = Cuda()
    function = kernel(c, 100)
    launch(c, function)
    say("running")
    input()
    moments = []
    for _ in range(300):
        launch(c, function)
        moments.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 100_000 % 1000)
        c.check("cuCtxSynchronize")
        time.sleep(0.001)
    say(*moments)


def forks() -> None:
    c = Cuda()
    function = kernel(c, 1000)
    assert launch(c, function) == 0
    child = os.fork()
    if child == 0:
        assert launch(c, function) != 0  # CUDA does not work in the child, but it must not hang
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert launch(c, function) == 0
    c.check("cuCtxSynchronize")


def copies_and_fills() -> None:
    c = Cuda()
    _, pointer = c.allocate(MIB)
    word = ctypes.c_uint64(7)
    c.check("cuMemcpyHtoD_v2", pointer, ctypes.byref(word), 8)
    c.check("cuMemcpyDtoD_v2", pointer + 64, pointer, 8)
    c.check("cuMemsetD8_v2", pointer, 0, 8)
    c.check("cuMemcpyDtoH_v2", ctypes.byref(word), pointer + 64, 8)
    c.check("cuCtxSynchronize")
    assert word.value == 7
