"""Concurrent kernels of a process: their parts of the GPU, and the order in which streams continue."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from tests.interposer.cuda_client import Cuda, in_threads

BLOCKING, NON_BLOCKING = 0, 1


class Streams(Cuda):
    """Streams that start together, at `go` or at the first wait; `when` returns milliseconds between events."""

    def __init__(self) -> None:
        super().__init__()
        self.word: Any = self.made("cuMemHostAlloc", 4, 0)
        self.one, self.two, self.three = self.stream(), self.stream(), self.stream()

    def stream(self, flags: int = NON_BLOCKING) -> ctypes.c_void_p:
        return self.made("cuStreamCreate", flags)

    def recorded(self, stream: Any, symbol: str = "cuEventRecord") -> ctypes.c_void_p:
        event = self.made("cuEventCreate", 0)
        self.check(symbol, event, stream)
        return event

    def when(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        elapsed = ctypes.c_float()
        self.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value

    def per_thread(self, kernel: ctypes.c_void_p) -> None:
        self.check("cuLaunchKernel_ptsz", kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)

    def _write(self, value: int) -> None:
        ctypes.c_uint32.from_address(self.word.value or 0).value = value

    def go(self) -> None:
        self._write(1)

    def wait(self) -> None:
        self.go()
        self.check("cuCtxSynchronize")

    def together(self, *streams: Any) -> ctypes.c_void_p:
        self._write(0)
        gate = self.stream()
        self.check("cuStreamWaitValue32_v2", gate, self.word, 1, 1)
        start = self.recorded(gate)
        for stream in streams:
            self.check("cuStreamWaitEvent", stream, start, 0)
        return start

    def took(self, *launches: tuple[ctypes.c_void_p, Any]) -> list[float]:
        start = self.together(*[stream for _, stream in launches])
        for kernel, stream in launches:
            self.launch(kernel, stream)
        ends = [self.recorded(stream) for _, stream in launches]
        self.wait()
        return [self.when(start, end) for end in ends]


def near(times: list[float], *wanted: float) -> None:
    assert all(abs(value - other) < 0.01 for value, other in zip(times, wanted, strict=True)), times


def shares_by_parts(kernels: str, ends: tuple[float, ...]) -> None:
    c = Streams()
    near(c.took(*zip(map(c.kernel, kernels.split()), (c.one, c.two, c.three), strict=False)), *ends)


def one_stream_and_another() -> None:
    c = Streams()
    k = c.kernel("k_25pct_10ms")
    near(c.took((k, c.one), (k, c.one), (k, c.two)), 20, 20, 10)


def legacy_stream() -> None:
    c = Streams()
    k, blocking, other = c.kernel("k_10pct_10ms"), c.stream(BLOCKING), c.stream(BLOCKING)
    near(c.took((k, blocking), (k, other), (k, c.one)), 10, 10, 10)
    near(c.took((k, blocking), (k, 0), (k, c.one)), 10, 20, 10)
    near(c.took((k, 0), (k, blocking), (k, other)), 20, 20, 20)  # its event waits for all of them
    start = c.together(0)
    c.per_thread(k)
    c.launch(k, 0)
    c.per_thread(k)
    end = c.recorded(0, "cuEventRecord_ptsz")
    c.wait()
    near([c.when(start, end)], 30)


def streams_of_threads() -> None:
    c = Streams()
    k = c.kernel("k_50pct_20ms")
    start, ends, queued = c.together(), list[ctypes.c_void_p](), threading.Barrier(2, c.go)

    def work() -> None:
        c.use(0)
        c.check("cuStreamWaitEvent_ptsz", 0, start, 0)
        c.per_thread(k)
        ends.append(c.recorded(0, "cuEventRecord_ptsz"))
        queued.wait()
        c.check("cuStreamSynchronize_ptsz", 0)

    in_threads(work, 2)
    near([c.when(start, end) for end in ends], 20, 20)


def waits_for_events() -> None:
    c = Streams()
    k, short = c.kernel("k_10pct_20ms"), c.kernel("k_10pct_5ms")
    start = c.together(c.one, c.three)
    c.launch(k, c.one)
    c.check("cuStreamWaitEvent", c.two, c.recorded(c.one), 0)
    c.launch(short, c.two)
    c.launch(short, c.three)
    ends = c.recorded(c.two), c.recorded(c.three)
    c.wait()
    near([c.when(start, end) for end in ends], 25, 5)

    began = time.monotonic()
    c.launch(c.kernel("k_1000ms"), c.one)
    event = c.recorded(c.one)
    c.use(1)
    far = c.stream()
    c.check("cuStreamWaitEvent", far, event, 0)
    c.launch(c.kernel("k_50ms"), far)
    assert time.monotonic() - began < 1.0, "only the stream waits"
    c.check("cuStreamSynchronize", far)
    assert time.monotonic() - began >= 1.05


def event_of_a_context() -> None:
    c = Streams()
    context, event, start = ctypes.c_void_p(), c.made("cuEventCreate", 0), c.together(c.one, c.two, c.three)
    c.check("cuCtxGetCurrent", ctypes.byref(context))
    c.launch(c.kernel("k_10pct_20ms"), c.one)
    c.launch(c.kernel("k_10pct_10ms"), c.two)
    c.check("cuCtxRecordEvent", context, event)
    c.launch(c.kernel("k_10pct_1000ms"), c.three)
    c.go()
    c.check("cuEventSynchronize", event)
    assert c.call("cuStreamQuery", c.three) == 600
    near([c.when(start, event)], 20)


def hundred_streams() -> None:
    c = Streams()
    k, streams = c.kernel("k_1pct_10ms"), [c.stream() for _ in range(100)]
    start = c.recorded(0)
    for stream in streams:
        c.launch(k, stream)
    ends = [c.recorded(stream) for stream in streams]
    c.check("cuCtxSynchronize")
    last = max(c.when(start, end) for end in ends)
    assert 30 < last < 300, last  # 32 at a time, for 10 ms


def thousand_launches() -> None:
    c = Streams()
    hold, k = c.kernel("k_1000ms"), c.kernel("k_1us")
    c.launch(hold, c.one)
    began = time.monotonic()
    for n in range(1023):
        c.launch(k, (c.one, c.two, c.three)[n % 3])
    assert time.monotonic() - began < 0.9
    c.launch(k, c.two)
    assert time.monotonic() - began > 0.9
    c.check("cuCtxSynchronize")
