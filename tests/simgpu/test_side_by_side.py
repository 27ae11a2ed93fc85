"""Kernels of a process side by side: what takes part of the GPU, and in which order streams go on."""

from __future__ import annotations

import sys

import pytest

from tests.simgpu.conftest import ROOT, Node

# `when` gives the milliseconds between events; `together` lets streams begin at one moment, and time to launch before.
PRELUDE = f"""
import sys, threading, time
sys.path.insert(0, {str(ROOT / "tests" / "interposer")!r})
from cuda_client import *
BLOCKING, NON_BLOCKING = 0, 1
c = Cuda()
def stream(flags=NON_BLOCKING): return c.made("cuStreamCreate", flags)
def recorded(stream, symbol="cuEventRecord"):
    event = c.made("cuEventCreate", 0)
    c.check(symbol, event, stream)
    return event
def when(start, end):
    elapsed = ctypes.c_float()
    c.check("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
    return elapsed.value
def per_thread(kernel): c.check("cuLaunchKernel_ptsz", kernel, 1, 1, 1, 1, 1, 1, 0, 0, None, None)
def together(*streams):
    gate = stream()
    c.launch(c.kernel("gate_100ms"), gate)
    start = recorded(gate)
    for each in streams: c.check("cuStreamWaitEvent", each, start, 0)
    return start
def took(*launches):
    start = together(*[stream for _, stream in launches])
    for kernel, stream in launches: c.launch(kernel, stream)
    ends = [recorded(stream) for _, stream in launches]
    c.check("cuCtxSynchronize")
    return [when(start, end) for end in ends]
def near(found, *wanted):
    assert all(abs(one - other) < 0.01 for one, other in zip(found, wanted, strict=True)), found
one, two, three = stream(), stream(), stream()
"""


def client(node: Node, code: str) -> str:
    result = node.run([sys.executable, "-c", PRELUDE + code])
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("kernels", "ends"),
    [
        ("k_20ms k_20ms", "20, 40"),
        ("k_50pct_20ms k_50pct_20ms", "20, 20"),
        ("k_25pct_20ms k_25pct_30ms k_50pct_40ms", "20, 30, 40"),
        ("k_60pct_20ms k_80pct_20ms", "20, 30"),  # the second has half of its part, until the first has ended
        ("k_20ms k_10pct_10ms", "20, 30"),
    ],
)
def test_kernels_of_different_streams_share_the_gpu_by_the_parts_that_they_take(
    node: Node, kernels: str, ends: str
) -> None:
    launches = ", ".join(f"(c.kernel({name!r}), c_stream)" for name in kernels.split())
    streams = "".join(f"{launch}" for launch in launches)
    for name in ("one", "two", "three"):
        streams = streams.replace("c_stream", name, 1)
    client(node, f"near(took({streams}), {ends})")


def test_kernels_of_one_stream_never_run_side_by_side(node: Node) -> None:
    client(node, "k = c.kernel('k_25pct_10ms')\nnear(took((k, one), (k, one), (k, two)), 20, 20, 10)")


def test_the_legacy_default_stream_waits_for_blocking_streams_and_they_for_it(node: Node) -> None:
    client(
        node,
        """
k, blocking, other = c.kernel("k_10pct_10ms"), stream(BLOCKING), stream(BLOCKING)
near(took((k, blocking), (k, other), (k, one)), 10, 10, 10)
near(took((k, blocking), (k, 0), (k, one)), 10, 20, 10)
near(took((k, 0), (k, blocking), (k, other)), 20, 20, 20)  # its event is a moment in all of them
start = together(0)
per_thread(k)
c.launch(k, 0)
per_thread(k)
end = recorded(0, "cuEventRecord_ptsz")
c.check("cuCtxSynchronize")
near([when(start, end)], 30)
""",
    )


def test_threads_have_default_streams_of_their_own(node: Node) -> None:
    client(
        node,
        """
k = c.kernel("k_50pct_200ms")
began = time.monotonic()
def work():
    c.use(0)
    per_thread(k)
    c.check("cuStreamSynchronize_ptsz", 0)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert 0.2 < time.monotonic() - began < 0.39
""",
    )


def test_a_stream_waits_for_an_event_of_another_one_and_of_another_gpu(node: Node) -> None:
    client(
        node,
        """
k, short = c.kernel("k_10pct_20ms"), c.kernel("k_10pct_5ms")
start = together(one, three)
c.launch(k, one)
c.check("cuStreamWaitEvent", two, recorded(one), 0)
c.launch(short, two)
c.launch(short, three)
ends = recorded(two), recorded(three)
c.check("cuCtxSynchronize")
near([when(start, end) for end in ends], 25, 5)

began = time.monotonic()
c.launch(c.kernel("k_300ms"), one)
event = recorded(one)
c.use(1)
far = stream()
c.check("cuStreamWaitEvent", far, event, 0)
c.launch(c.kernel("k_50ms"), far)
assert time.monotonic() - began < 0.3, "nobody is held up but the stream"
c.check("cuStreamSynchronize", far)
assert time.monotonic() - began >= 0.35
""",
    )


def test_an_event_of_a_whole_context_comes_after_all_of_its_streams(node: Node) -> None:
    client(
        node,
        """
context, event, start = ctypes.c_void_p(), c.made("cuEventCreate", 0), together(one, two, three)
c.check("cuCtxGetCurrent", ctypes.byref(context))
c.launch(c.kernel("k_10pct_20ms"), one)
c.launch(c.kernel("k_10pct_10ms"), two)
c.check("cuCtxRecordEvent", context, event)
c.launch(c.kernel("k_10pct_300ms"), three)
c.check("cuEventSynchronize", event)
assert c.call("cuStreamQuery", three) == 600
near([when(start, event)], 20)
""",
    )


def test_more_streams_than_channels_are_all_served(node: Node) -> None:
    client(
        node,
        """
k, streams = c.kernel("k_1pct_10ms"), [stream() for _ in range(100)]
start = recorded(0)
for each in streams: c.launch(k, each)
ends = [recorded(each) for each in streams]
c.check("cuCtxSynchronize")
last = max(when(start, end) for end in ends)
assert 30 < last < 300, last  # 32 at a time, for 10 ms
""",
    )


def test_a_context_takes_1024_launches_whatever_their_streams_are(node: Node) -> None:
    client(
        node,
        """
hold, k = c.kernel("k_500ms"), c.kernel("k_1us")
c.launch(hold, one)
began = time.monotonic()
for n in range(1023): c.launch(k, (one, two, three)[n % 3])
assert time.monotonic() - began < 0.4
c.launch(k, two)
assert time.monotonic() - began > 0.4
c.check("cuCtxSynchronize")
""",
    )
