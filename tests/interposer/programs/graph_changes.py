"""Programs that change executable graphs, or destroy them while they run."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import MIB, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, NodeParameters
from tests.interposer.programs.graphing import PTR, Graphs


class Changes(Graphs):
    """A client that changes graphs; `most` is the driver's high-water mark for graph memory, in MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = [self.made("cuStreamCreate", 0) for _ in range(2)]

    def most(self) -> int:
        value = ctypes.c_uint64()
        self.check("cuDeviceGetGraphMemAttribute", 0, 3, ctypes.byref(value))
        return value.value // MIB

    def of(self, mib: int, freed: bool = True) -> PTR:
        graph = self.make()
        pointer = self.add(graph, mib)
        if freed:
            self.add_free(graph, pointer)
        return graph

    def update(self, executable: PTR, graph: PTR, form: str = "_v2") -> int:
        results = [ctypes.byref((ctypes.c_uint64 * 3)()) for _ in range(1 if form else 2)]
        return self.call("cuGraphExecUpdate" + form, executable, graph, *results)


def updates(form: str) -> None:
    c = Changes()
    executable = c.instantiate(c.of(50))
    assert c.start(executable) == SUCCESS
    c.wait()
    assert c.update(executable, c.of(300), form) == SUCCESS
    assert c.start(executable) == OUT_OF_MEMORY
    assert c.update(executable, c.of(200), form) == SUCCESS
    assert c.start(executable) == SUCCESS
    c.wait()
    c.trim()
    assert c.used() == 0
    assert c.start(executable) == SUCCESS
    assert c.used() == 200
    assert c.most() == 200


def updates_what_runs() -> None:
    c = Changes()
    first, second = (c.make() for _ in range(2))
    for graph, mib in ((first, 100), (second, 150)):
        pointer = c.add(graph, mib)
        parameters = (ctypes.c_void_p * 16)(c.long.value)
        c.made("cuGraphAddKernelNode_v2", graph, None, 0, ctypes.byref(parameters))
        c.add_free(graph, pointer)
    executable = c.instantiate(first)
    assert c.start(executable, c.streams[0]) == SUCCESS
    assert c.update(executable, second) == SUCCESS
    assert c.start(executable, c.streams[1]) == SUCCESS
    assert c.used() == 250
    assert c.update(executable, first) == SUCCESS
    assert c.start(executable, c.streams[0]) == SUCCESS, "once the other launches have ended"
    assert c.most() <= 256, c.most()


def updates_in_vain() -> None:
    c = Changes()
    executable, two, other = c.instantiate(c.of(100)), c.of(20), c.of(200)
    c.add_free(two, c.add(two, 20))
    assert c.update(executable, two) == 910, "the nodes differ"
    c.instantiate(other)
    assert c.update(executable, other) == 910, "the graph belongs to another executable graph"
    assert c.start(executable) == SUCCESS
    assert c.used() == 100
    assert c.allocate(156 * MIB)[0] == SUCCESS


def updates_what_left_memory() -> None:
    c = Changes()
    executable = c.instantiate(c.of(100, freed=False))
    assert c.start(executable) == SUCCESS
    assert c.update(executable, c.of(150, freed=False)) == SUCCESS
    assert c.start(executable) == SUCCESS
    assert c.used() == 250
    assert c.update(executable, c.of(20, freed=False)) == SUCCESS
    assert c.start(executable) == OUT_OF_MEMORY
    assert c.most() == 250


def destroys_what_runs() -> None:
    c = Changes()
    gone, after = (c.captured(mib, stream, c.long) for mib, stream in zip((100, 200), c.streams, strict=False))
    assert c.start(gone, c.streams[0]) == SUCCESS
    c.check("cuGraphExecDestroy", gone)
    assert c.start(after, c.streams[1]) == SUCCESS, "once the destroyed graph has ended"
    assert c.most() == 200, c.most()
    assert c.used() == 200


def changes_a_child() -> None:
    c = Changes()
    child, parent, node = c.of(10), c.make(), ctypes.c_void_p()
    c.check("cuGraphAddChildGraphNode", ctypes.byref(node), parent, None, 0, child)
    executable = c.instantiate(parent)
    larger = c.of(300)
    what = NodeParameters(type=4)
    ctypes.memmove(ctypes.byref(what, 16), ctypes.byref(larger), 8)
    assert c.call("cuGraphExecChildGraphNodeSetParams", executable, node, larger) == NOT_SUPPORTED
    assert c.call("cuGraphExecNodeSetParams", executable, node, ctypes.byref(what)) == NOT_SUPPORTED
    assert c.start(executable) == SUCCESS
    assert c.most() == 10
