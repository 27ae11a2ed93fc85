"""Memory that graphs allocate is charged when they are launched, and a launch that does not fit is refused.

On simulated GPUs it comes in pages of 2 MiB, and graphs that run in one stream have the same.
"""

from __future__ import annotations

import sys

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import CLIENT_PRELUDE, Container, finishing
from tests.interposer.graphing import LIMIT, PRELUDE


def test_a_graph_is_charged_from_its_first_launch(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
graph = whole(199)
assert used() == 0
assert start(graph) == SUCCESS
assert used() == 200
assert [start(graph) for _ in range(20)] == [SUCCESS] * 20
assert used() == 200
assert c.allocate(56 * MIB)[0] == SUCCESS
assert [start(graph) for _ in range(20)] == [SUCCESS] * 20, "it has its memory"
wait()
trim()
assert used() == 56
"""
    )
    assert arbiter.reclaims == 0


def test_a_graph_that_has_its_memory_runs_on_when_the_driver_has_taken_more_than_there_was(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    code = """
graph, other = whole(200), whole(220)
assert start(graph) == SUCCESS
wait()
print("launched", flush=True)
input()
assert c.allocate(0)[0] not in (SUCCESS, OUT_OF_MEMORY), "the driver says what is wrong with it"
assert start(graph) == SUCCESS
wait()
assert start(other) == OUT_OF_MEMORY
"""
    with finishing(container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code])) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "launched\n"
        arbiter.set(0, overhead_bytes=LIMIT)
        _, errors = process.communicate("\n", timeout=20)
        assert process.returncode == 0, errors


def test_a_launch_that_does_not_fit_is_refused(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
graph = whole(100)
_, pointer = c.allocate(157 * MIB)
assert start(graph) == OUT_OF_MEMORY
assert c.call("cuGraphUpload", graph, 0) == OUT_OF_MEMORY
assert used() == 157
assert c.free(pointer) == SUCCESS
assert c.allocate(156 * MIB)[0] == SUCCESS
assert c.call("cuGraphUpload", graph, 0) == SUCCESS
assert used() == 256
assert start(graph) == SUCCESS
"""
    )


@pytest.mark.parametrize("per_thread", [False, True])
def test_an_allocation_in_a_capture_is_charged_when_the_graph_runs(
    container: Container, make_arbiter: ArbiterMaker, per_thread: bool
) -> None:
    make_arbiter(LIMIT)
    end = "_ptsz" if per_thread else ""
    container.python(
        PRELUDE
        + f"""
stream = c.made("cuStreamCreate", 0)
large, small = captured(1000, stream), captured(100, stream)
assert used() == 0
launch = lambda graph: c.call("cuGraphLaunch{end}", graph, stream)
assert launch(large) == OUT_OF_MEMORY
assert launch(small) == SUCCESS
assert used() == 100
assert c.allocate(10 * MIB, "cuMemAllocAsync{end}", stream)[0] == SUCCESS, "and outside of captures as ever"
assert used() == 132
"""
    )


def test_what_a_graph_frees_it_may_allocate_again(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
graph = make()
for _ in range(20):
    free(graph, add(graph, 100))
assert start(instantiate(graph)) == SUCCESS
assert used() == 100
"""
    )


def test_graphs_that_run_in_turn_fit_though_together_they_would_not(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
graphs = [whole(200) for _ in range(3)]
for _ in range(4):
    assert [start(graph) for graph in graphs] == [SUCCESS] * 3
assert used() == 200
"""
    )


def test_graphs_that_run_at_once_have_memory_of_their_own(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
streams = [c.made("cuStreamCreate", 0) for _ in range(2)]
graphs = [captured(100, stream, kernel) for stream in streams]
assert [start(*both) for both in zip(graphs, streams)] == [SUCCESS] * 2
assert used() == 200
third = c.made("cuStreamCreate", 0)
assert start(captured(100, third, kernel), third) == SUCCESS, "those that are done make room"
wait()
trim()
assert used() == 0
"""
    )


def test_what_a_graph_leaves_unfreed_stays_charged(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
graph = make()
pointer = add(graph, 100)
exec = instantiate(graph)
assert start(exec) == SUCCESS
wait()
trim()
assert used() == 100
c.check("cuGraphExecDestroy", exec)
trim()
assert used() == 100
assert start(whole(200)) == OUT_OF_MEMORY
assert start(whole(150)) == SUCCESS
assert used() == 250
c.check("cuMemFreeAsync", pointer, 0)
wait()
trim()
assert used() == 0
assert start(whole(256)) == SUCCESS
"""
    )


def test_nodes_of_every_kind_of_call_are_seen(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
child, parent = make(), make()
node = NodeParameters(type=10, allocation=allocation(100 * MIB))
c.check("cuGraphAddNode_v2", ctypes.byref(ctypes.c_void_p()), child, None, None, 0, ctypes.byref(node))
free(child, node.allocation.pointer)
free(parent, add(parent, 50))
c.check("cuGraphAddChildGraphNode", ctypes.byref(ctypes.c_void_p()), parent, None, 0, child)
assert start(instantiate(parent)) == SUCCESS
assert used() == 150
"""
    )


def test_a_graph_that_is_uploaded_as_it_is_made_is_charged_for(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
upload = InstantiateParameters(flags=2)
def uploaded(mib):
    graph, exec = make(), ctypes.c_void_p()
    free(graph, add(graph, mib))
    return c.call("cuGraphInstantiateWithParams", ctypes.byref(exec), graph, ctypes.byref(upload))
assert uploaded(257) == OUT_OF_MEMORY
assert upload.flags == 2
assert uploaded(256) == SUCCESS
assert used() == 256
"""
    )


def test_a_graph_cannot_allocate_on_a_gpu_that_is_not_the_shares(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
what = allocation(MIB, 1)
result = c.call("cuGraphAddMemAllocNode", ctypes.byref(ctypes.c_void_p()), make(), None, 0, ctypes.byref(what))
assert result == NOT_PERMITTED
"""
    )


def test_a_graph_on_two_gpus_is_charged_on_both(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT, 64 * MIB)
    container.python(
        PRELUDE
        + """
def both(first, second):
    graph = make()
    free(graph, add(graph, first))
    free(graph, add(graph, second, 1))
    return instantiate(graph)
assert start(both(100, 66)) == OUT_OF_MEMORY
assert used() == 0
assert start(both(100, 64)) == SUCCESS
assert used() == 100
c.use(1)
assert c.info()[0] == 0
"""
    )


def test_a_killed_process_leaves_no_graph_memory(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    code = "assert start(whole(256)) == SUCCESS\nprint('started', flush=True)\ninput()"
    for _ in range(2):
        with finishing(container.start([sys.executable, "-c", CLIENT_PRELUDE + PRELUDE + code])) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n", process.communicate(timeout=10)
        container.python(PRELUDE + "assert start(whole(256)) == SUCCESS")


@pytest.mark.parametrize("depth", [1, 64, 65])
def test_an_allocation_in_a_graph_in_graphs_is_charged_or_refused(
    container: Container, make_arbiter: ArbiterMaker, depth: int
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + f"""
graph, exec = make(), ctypes.c_void_p()
free(graph, add(graph, 257))
for _ in range({depth}):
    child, graph = graph, make()
    c.check("cuGraphAddChildGraphNode", ctypes.byref(ctypes.c_void_p()), graph, None, 0, child)
result = c.call("cuGraphInstantiateWithFlags", ctypes.byref(exec), graph, 0)
assert result == NOT_SUPPORTED or result == SUCCESS and start(exec) == OUT_OF_MEMORY, result
"""
    )
