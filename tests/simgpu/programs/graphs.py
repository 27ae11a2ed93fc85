"""Graphs, captures, and the number of launches that a context accepts before the next one waits."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.interposer.cuda_client import MIB, Cuda
from tests.interposer.programs import graphing

PTR = ctypes.c_void_p
USED, RESERVED = 0, 2  # CUgraphMem_attribute


class Graphs(Cuda):
    """A kernel, a stream, an event, and a graph that is captured or built."""

    def __init__(self) -> None:
        super().__init__()
        self.function, self.graph, self.executable = self.kernel("k_20ms"), PTR(), PTR()
        self.stream, self.event = self.made("cuStreamCreate", 0), self.made("cuEventCreate", 0)

    def begin(self) -> None:
        self.check("cuStreamBeginCapture_v2", self.stream, 0)

    def end(self) -> None:
        self.check("cuStreamEndCapture", self.stream, ctypes.byref(self.graph))

    def start(self, parameters: Any = None) -> int:
        return self.call("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters, None)

    def instantiate(self) -> None:
        self.check("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self.graph, 0)

    def took(self, what: Callable[[], object] | None = None) -> float:
        """Run this, or the graph, and return how long it takes until its end."""
        began = time.monotonic()
        what() if what else self.check("cuGraphLaunch", self.executable, self.stream)
        self.check("cuCtxSynchronize")
        return time.monotonic() - began


def captures() -> None:
    c = Graphs()
    c.begin()
    began = time.monotonic()
    assert [c.start() for _ in range(10)] == [0] * 10
    assert c.call("cuStreamSynchronize", c.stream) == 900
    assert c.call("cuCtxRecordEvent", c.made("cuCtxGetCurrent"), c.event) == 900
    c.check("cuEventRecord", c.event, c.stream)
    assert c.call("cuEventQuery", c.event) == 907
    c.end()
    assert time.monotonic() - began < 0.2
    c.instantiate()
    assert 0.2 <= c.took() < 1.0


def launches_in_a_row(launches: int) -> None:
    c = Graphs()
    c.function = c.kernel("k_10ms")
    began = time.monotonic()
    for _ in range(launches):
        c.start()
    waited = time.monotonic() - began > 0.7
    assert waited == (launches > 1024)


def kernel_with_a_parameter() -> None:
    c = Graphs()
    c.function = c.kernel("work_ns")
    nanoseconds = ctypes.c_uint64(30_000_000)
    parameters = (PTR * 1)(ctypes.addressof(nanoseconds))

    def work() -> int:
        return c.start(parameters)

    assert c.start() == 1, "no duration"
    assert 0.03 <= c.took(work) < 0.5
    c.begin()
    assert work() == work() == 0
    c.end()
    nanoseconds.value = 1
    c.instantiate()
    assert 0.06 <= c.took() < 0.5


def updates() -> None:
    c = Graphs()

    def captured(name: str, times: int) -> ctypes.c_void_p:
        c.function = c.kernel(name)
        c.begin()
        for _ in range(times):
            c.start()
        c.end()
        return PTR(c.graph.value)

    def update(graph: ctypes.c_void_p) -> tuple[int, int]:
        info = (ctypes.c_uint64 * 3)()
        return c.call("cuGraphExecUpdate_v2", c.executable, graph, ctypes.byref(info)), info[0]

    c.check("cuGraphInstantiateWithFlags", ctypes.byref(c.executable), captured("k_1us", 3), 0)
    assert update(captured("k_1us", 4)) == (910, 2), "it has more nodes"
    assert update(captured("k_20ms", 3)) == (0, 0)
    assert 0.06 <= c.took() < 0.5


def destroys_a_capturing_stream() -> None:
    c = Graphs()
    c.begin()
    assert c.start() == 0
    assert c.call("cuCtxSynchronize") == 900
    c.check("cuStreamDestroy_v2", c.stream)
    c.check("cuCtxSynchronize")


def starts_where_no_launch_is_taken() -> None:
    """A graph that allocates has its memory from its start, even if its kernel cannot be queued yet."""
    c = graphing.Graphs()
    stream, word, kernel = c.made("cuStreamCreate", 1), c.made("cuMemHostAlloc", 8, 0), c.kernel("k_1us")
    value = ctypes.c_uint32.from_address(word.value or 0)
    value.value = 0
    graph = c.captured(100, stream, kernel)

    def bytes_of(attribute: int) -> int:
        answer = ctypes.c_uint64()
        c.check("cuDeviceGetGraphMemAttribute", 0, attribute, ctypes.byref(answer))
        return answer.value

    c.check("cuStreamWaitValue32_v2", stream, word, 1, 1)
    launched: list[int] = []

    def start() -> None:
        c.use(0)
        launched.extend(c.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None) for _ in range(1023))
        launched.append(c.start(graph, stream))

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    while bytes_of(RESERVED) == 0:
        time.sleep(0.01)
    assert bytes_of(USED) == 100 * MIB
    print(len(launched))
    value.value = 1
    thread.join()
    c.wait()
    assert set(launched) == {0}
    assert bytes_of(USED) == 0
