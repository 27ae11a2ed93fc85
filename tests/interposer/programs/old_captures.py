"""Programs that capture with the functions of other CUDA versions, and in streams that join a capture."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS
from tests.interposer.programs.graphing import PTR, Graphs


def captures(begin: str, instantiate: str) -> None:
    c = Graphs()
    stream, graph = c.made("cuStreamCreate", 1), PTR()
    how = {"cuStreamBeginCapture": (), "cuStreamBeginCaptureToGraph": (c.make(), None, None, 0, 0)}.get(begin, (0,))
    c.check(begin, stream, *how)
    result, pointer = c.allocate(200 * MIB, "cuMemAllocAsync", stream)
    assert result == SUCCESS
    c.check("cuMemFreeAsync", pointer, stream)
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    executable = c.made(instantiate, graph, *((0,) if instantiate.endswith("WithFlags") else (None, None, 0)))
    assert c.used() == 0
    assert c.allocate(60 * MIB)[0] == SUCCESS
    assert c.start(executable) == OUT_OF_MEMORY


def joins_a_capture() -> None:
    c, graph = Graphs(), PTR()
    origin, two, event = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1), c.made("cuEventCreate", 0)
    c.check("cuStreamBeginCapture_v2", origin, 0)
    c.check("cuEventRecord", event, origin)
    c.check("cuStreamWaitEvent", two, event, 0)
    result, pointer = c.allocate(200 * MIB, "cuMemAllocAsync", two)
    assert (result, c.used()) == (SUCCESS, 0)
    c.launch(c.long, two)
    c.check("cuMemFreeAsync", pointer, two)
    c.check("cuEventRecord", event, two)
    c.check("cuStreamWaitEvent", origin, event, 0)
    c.check("cuStreamEndCapture", origin, ctypes.byref(graph))
    assert c.start(c.instantiate(graph)) == SUCCESS
    assert c.used() == 200
    assert c.allocate(57 * MIB)[0] == OUT_OF_MEMORY
    assert c.allocate(56 * MIB)[0] == SUCCESS
