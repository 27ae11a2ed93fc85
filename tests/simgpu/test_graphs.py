"""Graphs, captures, and the launches that a context takes before the next one waits."""

from __future__ import annotations

import sys

import pytest

from tests.simgpu.conftest import ROOT, Node

PRELUDE = """
import time
from cuda_client import *
PTR = ctypes.c_void_p
c = Cuda()
module, function, stream, graph, exec_, event = (PTR() for _ in range(6))
c.check("cuModuleLoadData", ctypes.byref(module), b"")
c.check("cuModuleGetFunction", ctypes.byref(function), module, b"k_5ms")
c.check("cuStreamCreate", ctypes.byref(stream), 0)
c.check("cuEventCreate", ctypes.byref(event), 0)
def launch(stream): return c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, PTR(), PTR())
def took(what):
    began = time.monotonic()
    what()
    c.check("cuCtxSynchronize")
    return time.monotonic() - began
"""


def run(node: Node, code: str) -> None:
    environment = {"PYTHONPATH": str(ROOT / "tests" / "interposer")}
    result = node.run([sys.executable, "-c", PRELUDE + code], environment)
    assert result.returncode == 0, result.stderr


def test_a_captured_graph_runs_when_it_is_launched_and_not_before(node: Node) -> None:
    run(
        node,
        """
c.check("cuStreamBeginCapture_v2", stream, 0)
began = time.monotonic()
assert [launch(stream) for _ in range(10)] == [0] * 10
assert c.call("cuStreamSynchronize", stream) == 900
assert c.call("cuCtxRecordEvent", *(lambda p: (c.check("cuCtxGetCurrent", ctypes.byref(p)), p)[1:])(PTR()), event) == 900
c.check("cuEventRecord", event, stream)
assert c.call("cuEventQuery", event) == 907
c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
assert time.monotonic() - began < 0.05
c.check("cuGraphInstantiateWithFlags", ctypes.byref(exec_), graph, 0)
assert 0.05 <= took(lambda: c.check("cuGraphLaunch", exec_, stream)) < 0.5
""",
    )


@pytest.mark.parametrize("launches", [1000, 1100])
def test_a_context_takes_so_many_launches_and_then_waits(node: Node, launches: int) -> None:
    run(
        node,
        f"""
c.check("cuModuleGetFunction", ctypes.byref(function), module, b"k_1ms")
began = time.monotonic()
for _ in range({launches}): launch(stream)
waited = time.monotonic() - began > 0.07
assert waited == ({launches} > 1024) or time.monotonic() - began > 0.5
""",
    )


def test_a_kernel_may_take_as_long_as_its_parameter_says(node: Node) -> None:
    run(
        node,
        """
c.check("cuModuleGetFunction", ctypes.byref(function), module, b"work_ns")
nanoseconds = ctypes.c_uint64(30_000_000)
parameters = (PTR * 1)(ctypes.addressof(nanoseconds))
def work(stream): return c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, PTR())
assert launch(stream) == 1, "nobody says how long"
assert 0.03 <= took(lambda: work(stream)) < 0.5
c.check("cuStreamBeginCapture_v2", stream, 0)
assert work(stream) == work(stream) == 0
c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
nanoseconds.value = 1
c.check("cuGraphInstantiateWithFlags", ctypes.byref(exec_), graph, 0)
assert 0.06 <= took(lambda: c.check("cuGraphLaunch", exec_, stream)) < 0.5
""",
    )


def test_an_executable_graph_becomes_another_one_of_the_same_nodes(node: Node) -> None:
    run(
        node,
        """
def captured(name, times):
    c.check("cuModuleGetFunction", ctypes.byref(function), module, name)
    c.check("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(times): launch(stream)
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    return PTR(graph.value)
def update(graph):
    info = (ctypes.c_uint64 * 3)()
    return c.call("cuGraphExecUpdate_v2", exec_, graph, ctypes.byref(info)), info[0]
c.check("cuGraphInstantiateWithFlags", ctypes.byref(exec_), captured(b"k_1us", 3), 0)
assert update(captured(b"k_1us", 4)) == (910, 2), "it has more nodes"
assert update(captured(b"k_20ms", 3)) == (0, 0)
assert 0.06 <= took(lambda: c.check("cuGraphLaunch", exec_, stream)) < 0.5
""",
    )


def test_a_capture_ends_with_its_stream(node: Node) -> None:
    run(
        node,
        """
c.check("cuStreamBeginCapture_v2", stream, 0)
assert launch(stream) == 0
assert c.call("cuCtxSynchronize") == 900
c.check("cuStreamDestroy_v2", stream)
c.check("cuCtxSynchronize")
""",
    )
