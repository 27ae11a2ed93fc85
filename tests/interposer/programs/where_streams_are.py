"""Programs that launch in a stream of another GPU than the thread's context, or without a context."""

from __future__ import annotations

import threading
import time

from tests.interposer.cuda_client import Cuda
from tests.interposer.programs.launching import PTR, graph_of, kernel, launch, say


class OnDevice(Cuda):
    """A client with a used GPU, and `stream` on it; the GPU's context is current."""

    def __init__(self, device: int, graph: bool = False) -> None:
        super().__init__(device=device)
        self.stream, self.graph = self.made("cuStreamCreate", 0), graph
        self.work = graph_of(self, kernel(self)) if graph else self.library_kernel(500_000)

    def library_kernel(self, us: int = 1) -> PTR:
        library = self.made("cuLibraryLoadData", b"", None, None, 0, None, None, 0)
        return self.made("cuLibraryGetKernel", library, f"k_{us}us".encode())

    def go(self) -> int:
        return launch(self, self.work, "cuGraphLaunch" if self.graph else "cuLaunchKernel", self.stream)


def without_a_context(graph: bool) -> None:
    c = OnDevice(0, graph)

    def run() -> None:
        assert c.go() == 0
        say("launched")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def with_another_context(graph: bool) -> None:
    c = OnDevice(1, graph)
    c.use(0)
    assert launch(c, kernel(c)) == 0
    say("the first")
    assert c.go() == 0
    say("the second")


def past_a_closed_gate() -> None:
    c = OnDevice(1)
    c.use(0)
    for _ in range(3):
        assert c.go() == 0
    say("launched")
    c.check("cuStreamSynchronize", c.stream)


def launches_far() -> None:
    c = OnDevice(0)
    short = c.library_kernel(20_000)
    c.check("cuCtxSetCurrent", None)
    for _ in range(30):
        assert launch(c, short, stream=c.stream) == 0
    began = time.monotonic()
    c.check("cuStreamSynchronize", c.stream)
    say(time.monotonic() - began)
    began = time.monotonic()
    assert c.go() == 0
    say("launched")
    input()


def uses_a_handle_again() -> None:
    c = OnDevice(0)
    short = c.library_kernel()
    for _ in range(3000):
        assert launch(c, short, stream=c.stream) == 0
    c.check("cuStreamDestroy_v2", c.stream)
    c.use(1)
    assert c.made("cuStreamCreate", 0).value == c.stream.value
    assert launch(c, short, stream=c.stream) == 0
    say("launched")
