"""Executable graphs that are changed, or gone while they run, are charged for what they take all the same."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import ArbiterMaker
from tests.interposer.container import Container, lines_of_the_library
from tests.interposer.graphing import LIMIT, PRELUDE

# `most`: what the driver has had for graphs, at most, in MiB.
CHANGES = (
    PRELUDE
    + """
def most():
    value = ctypes.c_uint64()
    c.check("cuDeviceGetGraphMemAttribute", 0, 3, ctypes.byref(value))
    return value.value // MIB
def of(mib, freed=True):
    graph = make()
    pointer = add(graph, mib)
    if freed: free(graph, pointer)
    return graph
def update(exec, graph, form="_v2"):
    results = [ctypes.byref((ctypes.c_uint64 * 3)()) for _ in range(1 if form else 2)]
    return c.call("cuGraphExecUpdate" + form, exec, graph, *results)
streams = [c.made("cuStreamCreate", 0) for _ in range(2)]
"""
)


@pytest.mark.parametrize("form", ["", "_v2"])
def test_a_graph_that_is_updated_is_charged_for_what_it_allocates_now(
    container: Container, make_arbiter: ArbiterMaker, form: str
) -> None:
    make_arbiter(LIMIT)
    container.python(
        CHANGES
        + f"""
exec = instantiate(of(50))
assert start(exec) == SUCCESS
wait()
assert update(exec, of(300), {form!r}) == SUCCESS
assert start(exec) == OUT_OF_MEMORY
assert update(exec, of(200), {form!r}) == SUCCESS
assert start(exec) == SUCCESS
wait()
trim()
assert used() == 0
assert start(exec) == SUCCESS
assert used() == 200
assert most() == 200
"""
    )


def test_a_graph_that_is_updated_while_it_runs_has_memory_twice(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        CHANGES
        + """
first, second = (make() for _ in range(2))
for graph, mib in ((first, 100), (second, 150)):
    pointer = add(graph, mib)
    parameters = (ctypes.c_void_p * 16)(kernel.value)
    c.check("cuGraphAddKernelNode_v2", ctypes.byref(ctypes.c_void_p()), graph, None, 0, ctypes.byref(parameters))
    free(graph, pointer)
exec = instantiate(first)
assert start(exec, streams[0]) == SUCCESS
assert update(exec, second) == SUCCESS
assert start(exec, streams[1]) == SUCCESS
assert used() == 250
assert update(exec, first) == SUCCESS
assert start(exec, streams[0]) == SUCCESS, "when the others are done"
assert most() <= 256, most()
"""
    )


def test_a_graph_that_cannot_be_updated_stays_as_it_was(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.python(
        CHANGES
        + """
exec, two, other = instantiate(of(100)), of(20), of(200)
free(two, add(two, 20))
assert update(exec, two) == 910, "other nodes"
instantiate(other)
assert update(exec, other) == 910, "it is another executable graph's"
assert start(exec) == SUCCESS
assert used() == 100
assert c.allocate(156 * MIB)[0] == SUCCESS
"""
    )


def test_what_a_graph_left_unfreed_before_it_was_updated_stays_charged(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        CHANGES
        + """
exec = instantiate(of(100, freed=False))
assert start(exec) == SUCCESS
assert update(exec, of(150, freed=False)) == SUCCESS
assert start(exec) == SUCCESS
assert used() == 250
assert update(exec, of(20, freed=False)) == SUCCESS
assert start(exec) == OUT_OF_MEMORY
assert most() == 250
"""
    )


def test_a_graph_that_is_destroyed_while_it_runs_has_its_memory_until_it_is_done(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        CHANGES
        + """
gone, next = (captured(mib, stream, kernel) for mib, stream in zip((100, 200), streams))
assert start(gone, streams[0]) == SUCCESS
c.check("cuGraphExecDestroy", gone)
assert start(next, streams[1]) == SUCCESS, "when it is done"
assert most() == 200, most()
assert used() == 200
"""
    )


def test_allocations_are_not_put_into_a_child_of_an_executable_graph(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    code = """
child, parent, node = of(10), make(), ctypes.c_void_p()
c.check("cuGraphAddChildGraphNode", ctypes.byref(node), parent, None, 0, child)
exec = instantiate(parent)
larger = of(300)
what = NodeParameters(type=4)
ctypes.memmove(ctypes.byref(what, 16), ctypes.byref(larger), 8)
assert c.call("cuGraphExecChildGraphNodeSetParams", exec, node, larger) == NOT_SUPPORTED
assert c.call("cuGraphExecNodeSetParams", exec, node, ctypes.byref(what)) == NOT_SUPPORTED
assert start(exec) == SUCCESS
assert most() == 10
"""
    result = container.run(["python3", "-c", "from cuda_client import *\n" + CHANGES + code])
    assert result.returncode == 0, result.stderr
    first, second = lines_of_the_library(result.stderr)
    assert "cuGraphExecChildGraphNodeSetParams is refused" in first
    assert "cuGraphExecNodeSetParams is refused" in second
