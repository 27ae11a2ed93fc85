"""A client for programs with graphs that allocate."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.interposer.cuda_client import MIB, Cuda, allocation

LIMIT = 256 * MIB
PTR = ctypes.c_void_p


class Graphs(Cuda):
    """A client in a share of 256 MiB that creates, launches and frees graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.long = self.kernel("spin_500ms")

    def used(self) -> int:
        return (LIMIT - self.info()[0]) // MIB

    def wait(self) -> None:
        self.check("cuCtxSynchronize")

    def make(self) -> PTR:
        return self.made("cuGraphCreate", 0)

    def start(self, graph: PTR, stream: Any = 0) -> int:
        return self.call("cuGraphLaunch", graph, stream)

    def trim(self) -> None:
        self.check("cuDeviceGraphMemTrim", 0)

    def add(self, graph: PTR, mib: int, device: int = 0) -> int:
        what = allocation(mib * MIB, device)
        self.made("cuGraphAddMemAllocNode", graph, None, 0, ctypes.byref(what))
        return int(what.pointer)

    def add_free(self, graph: PTR, pointer: int) -> None:
        self.made("cuGraphAddMemFreeNode", graph, None, 0, pointer)

    def instantiate(self, graph: PTR) -> PTR:
        return self.made("cuGraphInstantiateWithFlags", graph, 0)

    def whole(self, mib: int) -> PTR:
        graph = self.make()
        self.add_free(graph, self.add(graph, mib))
        return self.instantiate(graph)

    def captured(self, mib: int, stream: PTR, work: PTR | None = None) -> PTR:
        self.check("cuStreamBeginCapture_v2", stream, 0)
        _, pointer = self.allocate(mib * MIB, "cuMemAllocAsync", stream)
        if work:
            self.launch(work, stream)
        self.check("cuMemFreeAsync", pointer, stream)
        graph = PTR()
        self.check("cuStreamEndCapture", stream, ctypes.byref(graph))
        return self.instantiate(graph)
