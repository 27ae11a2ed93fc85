"""Programs that capture, and launch kernels during and after captures."""

from __future__ import annotations

import ctypes
import time

from tests.interposer.cuda_client import Cuda
from tests.interposer.programs.launching import PTR, kernel, launch, say, two_long_kernels


def captures_for_long() -> None:
    c = Cuda()
    function = kernel(c, 1000)
    assert launch(c, function) == 0
    stream, graph = c.made("cuStreamCreate", 0), PTR()
    c.check("cuStreamBeginCapture_v2", stream, 0)
    other = c.made("cuStreamCreate", 0)
    # this stream is not capturing, so no capture ended
    assert c.call("cuStreamEndCapture", other, ctypes.byref(graph)) != 0
    say("capturing")
    for _ in range(50):
        assert launch(c, function, "cuLaunchKernel", stream) == 0
    input()
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))


def captured_again(c: Cuda, stream: PTR) -> None:
    graph = PTR()
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    c.check("cuStreamBeginRecaptureToGraph", stream, 0, graph, None, None)
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))


# Ways in which a capture ends, in a stream of the given or of the primary context.
ENDS = {
    "the capture": lambda c, stream, _: c.check("cuStreamEndCapture", stream, ctypes.byref(PTR())),
    "a second capture into its graph": lambda c, stream, _: captured_again(c, stream),
    "its stream": lambda c, stream, _: c.check("cuStreamDestroy_v2", stream),
    "its stream, by the old function": lambda c, stream, _: c.check("cuStreamDestroy", stream),
    "its context": lambda c, _, context: c.check("cuCtxDestroy_v2", context),
    "the primary context": lambda c, *_: c.check("cuDevicePrimaryCtxReset_v2", 0),
}


def ends_a_capture(end: str) -> None:
    c = Cuda()
    context = c.made("cuCtxCreate_v2", 0, 0) if end == "its context" else None
    if end == "the primary context":
        c.use(0)  # a second time
    stream = c.made("cuStreamCreate", 0)
    c.check("cuStreamBeginCapture_v2", stream, 0)
    ENDS[end](c, stream, context)
    if end.endswith("context"):
        c.use(0)
    two_long_kernels(c)


def captures_again(symbol: str) -> None:
    """Capture a kernel twice into one graph: it runs once per launch, and not before."""
    c = Cuda()
    function = kernel(c, 1000)
    stream, graph = c.made("cuStreamCreate", 1), PTR()
    c.check("cuStreamBeginCapture_v2", stream, 0)
    assert launch(c, function, "cuLaunchKernel", stream) == 0
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    c.check(symbol, stream, 0, graph, None, None)
    assert launch(c, function, "cuLaunchKernel", stream) == 0
    c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
    say("captured")
    input()
    executable = c.made("cuGraphInstantiateWithFlags", graph, 0)
    c.check("cuGraphLaunch", executable, stream)
    c.check("cuStreamSynchronize", stream)


def begin_one_for_ever(c: Cuda) -> None:
    c.check("cuStreamBeginCapture_v2", c.made("cuStreamCreate", 1), 2)


def in_a_stream(own: bool, destroyed: bool, capture: bool) -> None:
    """Launch in a separate stream, which may be destroyed, or in the default one, with or without a capture."""
    c = Cuda()
    other = c.made("cuStreamCreate", 1)
    if capture:
        begin_one_for_ever(c)
    two_long_kernels(c, other if own else None, (lambda: c.check("cuStreamDestroy_v2", other)) if destroyed else None)


def captures_after_kernels() -> None:
    c = Cuda()
    other = c.made("cuStreamCreate", 1)
    two_long_kernels(c, other, lambda: c.check("cuStreamBeginCapture_v2", other, 2))


def launches_beside_one() -> None:
    c = Cuda()
    function = kernel(c, 20_000)
    begin_one_for_ever(c)
    for _ in range(30):
        launch(c, function)
    began = time.monotonic()
    c.check("cuStreamSynchronize", None)
    say(time.monotonic() - began)
