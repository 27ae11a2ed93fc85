"""The simulated CUDA driver is strict: misuse returns an error, or ends the program with a sentence."""

from __future__ import annotations

import ctypes

from tests.interposer.cuda_client import SUCCESS, Cuda


def stream(c: Cuda) -> None:
    stream = c.made("cuStreamCreate", 1)
    c.check("cuStreamDestroy_v2", stream)
    c.call("cuStreamSynchronize", stream)


def event(c: Cuda) -> None:
    event = c.made("cuEventCreate", 0)
    c.check("cuEventDestroy_v2", event)
    c.call("cuEventDestroy_v2", event)


def module(c: Cuda) -> None:
    module = c.made("cuModuleLoadData", b"image")
    c.check("cuModuleUnload", module)
    c.call("cuModuleGetFunction", ctypes.byref(ctypes.c_void_p()), module, b"k_1us")


def function(c: Cuda) -> None:
    module = c.made("cuModuleLoadData", b"image")
    function = c.made("cuModuleGetFunction", module, b"k_1us")
    c.check("cuModuleUnload", module)
    c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, None, None)


def graph(c: Cuda) -> None:
    graph = c.made("cuGraphCreate", 0)
    c.check("cuGraphDestroy", graph)
    c.call("cuGraphInstantiateWithFlags", ctypes.byref(ctypes.c_void_p()), graph, 0)


def node(c: Cuda) -> None:
    graph = c.made("cuGraphCreate", 0)
    node = c.made("cuGraphAddEmptyNode", graph, None, 0)
    c.check("cuGraphDestroy", graph)
    c.call("cuGraphNodeGetType", node, ctypes.byref(ctypes.c_int()))


def executable_graph(c: Cuda) -> None:
    executable = c.made("cuGraphInstantiateWithFlags", c.made("cuGraphCreate", 0), 0)
    c.check("cuGraphExecDestroy", executable)
    c.call("cuGraphLaunch", executable, 0)


# Functions that use an object after its end, by the object's name in the error.
ENDED = {
    "a stream": stream,
    "an event": event,
    "a module": module,
    "a function": function,
    "a graph": graph,
    "a node": node,
    "an executable graph": executable_graph,
}


def uses_what_has_ended(what: str) -> None:
    ENDED[what](Cuda())
    print("went on")


def event_for_a_stream() -> None:
    c = Cuda()
    c.call("cuStreamSynchronize", c.made("cuEventCreate", 0))


def other_contexts() -> None:
    c = Cuda()
    stream, event, kernel = c.made("cuStreamCreate", 0), c.made("cuEventCreate", 0), c.kernel("k_1us")

    def launch(function: ctypes.c_void_p, stream: ctypes.c_void_p | int) -> int:
        return c.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

    second = c.made("cuCtxCreate_v2", 0, 0)
    own = c.made("cuEventCreate", 0)
    assert launch(kernel, 0) == 400, "its module belongs to another context"
    assert launch(c.kernel("k_1us"), stream) == 400
    assert c.call("cuEventRecord", own, stream) == c.call("cuEventRecord", event, 0) == 400
    c.check("cuEventRecord", event, stream)
    c.check("cuStreamWaitEvent", 0, event, 0)
    c.check("cuStreamSynchronize", stream)
    c.check("cuEventRecord", own, 0)
    c.check("cuCtxSynchronize")
    assert c.call("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), event, own) == 400
    mine = c.made("cuStreamCreate", 0)
    c.check("cuCtxDestroy_v2", second)
    for _ in range(60):
        c.check("cuCtxDestroy_v2", c.made("cuCtxCreate_v2", 0, 0))
    assert c.call("cuStreamQuery", mine) == c.call("cuEventQuery", own) == 709, "their context is gone"
    assert launch(kernel, stream) == SUCCESS


def primary_context() -> None:
    c = Cuda()
    first = c.made("cuDevicePrimaryCtxRetain", 1).value
    c.check("cuDevicePrimaryCtxRelease_v2", 1)
    c.made("cuCtxCreate_v2", 0, 0)
    assert c.made("cuDevicePrimaryCtxRetain", 1).value == first


def copies_beyond() -> None:
    c = Cuda()
    _, pointer = c.allocate(1000)
    data = ctypes.create_string_buffer(2000)
    c.check("cuMemcpyHtoD_v2", pointer, data, 1000)
    for name, arguments in {
        "cuMemcpyHtoD_v2": (pointer, data, 1001),
        "cuMemcpyDtoH_v2": (data, pointer + 999, 2),
        "cuMemcpyDtoD_v2": (pointer, 4096, 8),
        "cuMemsetD8_v2": (pointer + 1000, 0, 1),
        "cuMemsetD32_v2": (pointer + 2, 0, 1),
    }.items():
        assert c.call(name, *arguments) == 1, name
    assert c.call("cuMemcpyHtoDAsync_v2", 8, data, 1, 0) == 1
    assert c.free(pointer) == SUCCESS
    assert c.free(pointer) == 1, "CUDA_ERROR_INVALID_VALUE"
    assert c.call("cuMemcpyDtoH_v2", data, pointer, 1) == 1


def faults() -> None:
    c = Cuda()
    kernel, before = c.kernel("fault_20ms"), c.allocate(1 << 20)[1]
    stream = c.made("cuStreamCreate", 1)
    c.launch(kernel, stream)
    assert c.allocate(1 << 20)[0] == SUCCESS, "the kernel has not failed yet"
    assert c.call("cuStreamSynchronize", stream) == 700
    for result in (
        c.allocate(1)[0],
        c.free(before),
        c.call("cuCtxSynchronize"),
        c.call("cuStreamQuery", 0),
        c.call("cuMemcpyDtoH_v2", ctypes.create_string_buffer(1), before, 1),
    ):
        assert result == 700
    name = ctypes.c_char_p()
    c.check("cuGetErrorName", 700, ctypes.byref(name))
    assert name.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    c.check("cuDevicePrimaryCtxReset_v2", 0)
    c.use(0)
    assert c.info()[0] == c.info()[1], "the memory of the context is free"
    assert c.allocate(1)[0] == SUCCESS


def frees_at_its_end(one_path: str, other_path: str) -> None:
    first_library = ctypes.CDLL(one_path)
    c = Cuda()
    other = ctypes.CDLL(other_path)
    assert c.free(0) == SUCCESS
    for library in (first_library, other):
        ctypes.c_void_p.in_dll(library, "last_call").value = c.address("cuMemFree_v2")
