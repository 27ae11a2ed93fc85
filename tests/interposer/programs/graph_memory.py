"""Programs with graphs that allocate."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import (
    MIB,
    NOT_PERMITTED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    InstantiateParameters,
    NodeParameters,
    allocation,
)
from tests.interposer.programs.graphing import PTR, Graphs


def launches(mib: int) -> None:
    c = Graphs()
    assert c.start(c.whole(mib)) == SUCCESS


def launches_until_it_is_killed(mib: int) -> None:
    launches(mib)
    print("started", flush=True)
    input()


def launches_again_and_again() -> None:
    c = Graphs()
    graph = c.whole(199)
    assert c.used() == 0
    assert c.start(graph) == SUCCESS
    assert c.used() == 200
    assert [c.start(graph) for _ in range(20)] == [SUCCESS] * 20
    assert c.used() == 200
    assert c.allocate(56 * MIB)[0] == SUCCESS
    assert [c.start(graph) for _ in range(20)] == [SUCCESS] * 20, "it has its memory"
    c.wait()
    c.trim()
    assert c.used() == 56


def runs_on() -> None:
    c = Graphs()
    graph, other = c.whole(200), c.whole(220)
    assert c.start(graph) == SUCCESS
    c.wait()
    print("launched", flush=True)
    input()
    assert c.allocate(0)[0] not in (SUCCESS, OUT_OF_MEMORY), "the driver reports the error"
    assert c.start(graph) == SUCCESS
    c.wait()
    assert c.start(other) == OUT_OF_MEMORY


def does_not_fit() -> None:
    c = Graphs()
    graph = c.whole(100)
    _, pointer = c.allocate(157 * MIB)
    assert c.start(graph) == OUT_OF_MEMORY
    assert c.call("cuGraphUpload", graph, 0) == OUT_OF_MEMORY
    assert c.used() == 157
    assert c.free(pointer) == SUCCESS
    assert c.allocate(156 * MIB)[0] == SUCCESS
    assert c.call("cuGraphUpload", graph, 0) == SUCCESS
    assert c.used() == 256
    assert c.start(graph) == SUCCESS


def allocates_in_a_capture(end: str) -> None:
    c = Graphs()
    stream = c.made("cuStreamCreate", 0)
    large, small = c.captured(1000, stream), c.captured(100, stream)
    assert c.used() == 0

    def launch(graph: PTR) -> int:
        return c.call(f"cuGraphLaunch{end}", graph, stream)

    assert launch(large) == OUT_OF_MEMORY
    assert launch(small) == SUCCESS
    assert c.used() == 100
    assert c.allocate(10 * MIB, f"cuMemAllocAsync{end}", stream)[0] == SUCCESS, "outside captures nothing has changed"
    assert c.used() == 132


def allocates_what_it_freed() -> None:
    c = Graphs()
    graph = c.make()
    for _ in range(20):
        c.add_free(graph, c.add(graph, 100))
    assert c.start(c.instantiate(graph)) == SUCCESS
    assert c.used() == 100


def run_in_turn() -> None:
    c = Graphs()
    graphs = [c.whole(200) for _ in range(3)]
    for _ in range(4):
        assert [c.start(graph) for graph in graphs] == [SUCCESS] * 3
    assert c.used() == 200


def run_at_once() -> None:
    c = Graphs()
    streams = [c.made("cuStreamCreate", 0) for _ in range(2)]
    graphs = [c.captured(100, stream, c.long) for stream in streams]
    assert [c.start(*both) for both in zip(graphs, streams, strict=False)] == [SUCCESS] * 2
    assert c.used() == 200
    third = c.made("cuStreamCreate", 0)
    assert c.start(c.captured(100, third, c.long), third) == SUCCESS, "graphs that have ended make room"
    c.wait()
    c.trim()
    assert c.used() == 0


def leaves_unfreed() -> None:
    c = Graphs()
    graph = c.make()
    pointer = c.add(graph, 100)
    executable = c.instantiate(graph)
    assert c.start(executable) == SUCCESS
    c.wait()
    c.trim()
    assert c.used() == 100
    c.check("cuGraphExecDestroy", executable)
    c.trim()
    assert c.used() == 100
    assert c.start(c.whole(200)) == OUT_OF_MEMORY
    assert c.start(c.whole(150)) == SUCCESS
    assert c.used() == 250
    c.check("cuMemFreeAsync", pointer, 0)
    c.wait()
    c.trim()
    assert c.used() == 0
    assert c.start(c.whole(256)) == SUCCESS


def every_kind_of_node(symbol: str) -> None:
    c = Graphs()
    child, parent = c.make(), c.make()
    node = NodeParameters(type=10, allocation=allocation(100 * MIB))
    c.made(symbol, child, None, None, 0, ctypes.byref(node))
    elsewhere = NodeParameters(type=10, allocation=allocation(MIB, device=1))
    assert c.call(symbol, ctypes.byref(PTR()), child, None, None, 0, ctypes.byref(elsewhere)) == NOT_PERMITTED
    c.add_free(child, node.allocation.pointer)
    c.add_free(parent, c.add(parent, 50))
    c.made("cuGraphAddChildGraphNode", parent, None, 0, child)
    assert c.start(c.instantiate(parent)) == SUCCESS
    assert c.used() == 150


def uploads() -> None:
    c = Graphs()
    upload = InstantiateParameters(flags=2)

    def uploaded(mib: int) -> int:
        graph, executable = c.make(), ctypes.c_void_p()
        c.add_free(graph, c.add(graph, mib))
        return c.call("cuGraphInstantiateWithParams", ctypes.byref(executable), graph, ctypes.byref(upload))

    assert uploaded(257) == OUT_OF_MEMORY
    assert upload.flags == 2
    assert uploaded(256) == SUCCESS
    assert c.used() == 256


def on_another_gpu() -> None:
    c = Graphs()
    what = allocation(MIB, 1)
    result = c.call("cuGraphAddMemAllocNode", ctypes.byref(ctypes.c_void_p()), c.make(), None, 0, ctypes.byref(what))
    assert result == NOT_PERMITTED


def on_two_gpus() -> None:
    c = Graphs()

    def both(first: int, second: int) -> PTR:
        graph = c.make()
        c.add_free(graph, c.add(graph, first))
        c.add_free(graph, c.add(graph, second, 1))
        return c.instantiate(graph)

    assert c.start(both(100, 66)) == OUT_OF_MEMORY
    assert c.used() == 0
    assert c.start(both(100, 64)) == SUCCESS
    assert c.used() == 100
    c.use(1)
    assert c.info()[0] == 0


def graphs_in_graphs(depth: int) -> None:
    c = Graphs()
    graph, executable = c.make(), ctypes.c_void_p()
    c.add_free(graph, c.add(graph, 257))
    for _ in range(depth):
        child, graph = graph, c.make()
        c.made("cuGraphAddChildGraphNode", graph, None, 0, child)
    result = c.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    assert result == NOT_SUPPORTED or (result == SUCCESS and c.start(executable) == OUT_OF_MEMORY), result
