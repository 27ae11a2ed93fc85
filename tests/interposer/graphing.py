"""What programs of the tests say to make graphs that allocate."""

from __future__ import annotations

from tests.interposer.conftest import MIB

LIMIT = 256 * MIB
PRELUDE = f"""
c = Cuda()
used = lambda: {LIMIT // MIB} - c.info()[0] // MIB
wait = lambda: c.check("cuCtxSynchronize")
make = lambda: c.made("cuGraphCreate", 0)
start = lambda graph, stream=0: c.call("cuGraphLaunch", graph, stream)
trim = lambda: c.check("cuDeviceGraphMemTrim", 0)
kernel = c.kernel("spin_100ms")
def add(graph, mib, device=0):
    node, what = ctypes.c_void_p(), allocation(mib * MIB, device)
    c.check("cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, 0, ctypes.byref(what))
    return what.pointer
def free(graph, pointer):
    c.check("cuGraphAddMemFreeNode", ctypes.byref(ctypes.c_void_p()), graph, None, 0, pointer)
def instantiate(graph):
    return c.made("cuGraphInstantiateWithFlags", graph, 0)
def whole(mib):
    graph = make()
    free(graph, add(graph, mib))
    return instantiate(graph)
def captured(mib, stream, work=None):
    c.check("cuStreamBeginCapture_v2", stream, 0)
    _, pointer = c.allocate(mib * MIB, "cuMemAllocAsync", stream)
    if work: c.launch(work, stream)
    c.check("cuMemFreeAsync", pointer, stream)
    graph = ctypes.c_void_p()
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    return instantiate(graph)
"""
