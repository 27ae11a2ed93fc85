"""Captures and executable graphs by the calls of other CUDA versions, and by streams that join a capture, are charged alike."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.graphing import LIMIT, PRELUDE

BEGINS = {
    "of CUDA 10": "c.check('cuStreamBeginCapture', stream)",
    "of the thread's stream's form": "c.check('cuStreamBeginCapture_v2_ptsz', stream, 0)",
    "into a graph": "c.check('cuStreamBeginCaptureToGraph', stream, make(), None, None, 0, 0)",
}
INSTANTIATES = {
    "of CUDA 10": "c.made('cuGraphInstantiate', graph, None, None, 0)",
    "of CUDA 11": "c.made('cuGraphInstantiate_v2', graph, None, None, 0)",
    "with flags": "c.made('cuGraphInstantiateWithFlags', graph, 0)",
}


@pytest.mark.parametrize("instantiate", INSTANTIATES.values(), ids=INSTANTIATES.keys())
@pytest.mark.parametrize("begin", BEGINS.values(), ids=BEGINS.keys())
def test_a_graph_is_charged_when_it_is_launched_however_it_was_made(
    container: Container, make_arbiter: ArbiterMaker, begin: str, instantiate: str
) -> None:
    make_arbiter(LIMIT)
    container.python(
        f"""{PRELUDE}
stream, graph = c.made("cuStreamCreate", 1), ctypes.c_void_p()
{begin}
result, pointer = c.allocate(200 * MIB, "cuMemAllocAsync", stream)
assert result == SUCCESS
c.check("cuMemFreeAsync", pointer, stream)
c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
executable = {instantiate}
assert used() == 0
assert c.allocate(60 * MIB)[0] == SUCCESS
assert start(executable) == OUT_OF_MEMORY
"""
    )


def test_what_a_stream_allocates_that_joined_a_capture_is_the_graphs(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.python(
        PRELUDE
        + """
one, two, event, graph = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1), c.made("cuEventCreate", 0), ctypes.c_void_p()
c.check("cuStreamBeginCapture_v2", one, 0)
c.check("cuEventRecord", event, one)
c.check("cuStreamWaitEvent", two, event, 0)
result, pointer = c.allocate(200 * MIB, "cuMemAllocAsync", two)
assert (result, used()) == (SUCCESS, 0)
c.launch(kernel, two)
c.check("cuMemFreeAsync", pointer, two)
c.check("cuEventRecord", event, two)
c.check("cuStreamWaitEvent", one, event, 0)
c.check("cuStreamEndCapture", one, ctypes.byref(graph))
executable = instantiate(graph)
assert start(executable) == SUCCESS
assert used() == 200
assert c.allocate(57 * MIB)[0] == OUT_OF_MEMORY
assert c.allocate(56 * MIB)[0] == SUCCESS
"""
    )
