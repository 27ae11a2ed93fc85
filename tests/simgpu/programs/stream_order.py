"""Work in streams other than kernels keeps its order: host functions, words in memory, copies after them."""

from __future__ import annotations

import ctypes
import time

from tests.interposer.cuda_client import SUCCESS
from tests.simgpu.programs.concurrent_kernels import Streams


class Words(Streams):
    """A word in memory and its present value."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = self.stream()
        _, self.word = self.allocate(8)
        self.check("cuMemsetD32_v2", self.word, 0, 1)

    def now(self) -> int:
        value = ctypes.c_uint32()
        self.check("cuMemcpyDtoHAsync_v2", ctypes.byref(value), self.word, 4, self.reader)
        self.check("cuStreamSynchronize", self.reader)
        return value.value


def function_of_the_host() -> None:
    c = Streams()
    calls: list[tuple[int, float]] = []
    k = c.kernel("k_200ms")

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def called(data: int) -> None:
        time.sleep(0.05)
        calls.append((data, time.monotonic()))

    began = time.monotonic()
    c.launch(k, c.one)
    c.check("cuLaunchHostFunc", c.one, called, ctypes.c_void_p(7))
    c.launch(c.kernel("k_10pct_20ms"), c.one)
    free = c.recorded(c.two)
    assert not calls and c.call("cuEventQuery", free) == SUCCESS, "others do not wait"
    c.check("cuStreamSynchronize", c.one)
    ((data, at),) = calls
    assert data == 7 and at - began >= 0.25 and time.monotonic() - at >= 0.02


def waits_for_a_word() -> None:
    c = Words()
    c.check("cuStreamWaitValue32", c.one, c.word, 1, 1)
    c.launch(c.kernel("k_1ms"), c.one)
    c.launch(c.kernel("k_10pct_500ms"), c.two)
    c.check("cuStreamWriteValue32", c.two, c.word, 1, 0)
    assert c.call("cuStreamQuery", c.one) == c.call("cuStreamQuery", c.two) == 600
    assert c.now() == 0
    c.check("cuStreamSynchronize", c.one)
    assert c.now() == 1
    assert c.call("cuStreamQuery", c.two) == SUCCESS


def word_of_the_host() -> None:
    c = Streams()
    word = ctypes.c_uint64(0)
    c.check("cuStreamWaitValue64", c.one, ctypes.addressof(word), 5, 0)
    c.launch(c.kernel("k_1ms"), c.one)
    event = c.recorded(c.one)
    c.check("cuStreamWaitEvent", c.two, event, 0)
    c.launch(c.kernel("k_1ms"), c.two)
    time.sleep(0.03)
    assert c.call("cuStreamQuery", c.one) == c.call("cuEventQuery", event) == c.call("cuStreamQuery", c.two) == 600
    word.value = 5
    c.check("cuStreamSynchronize", c.two)
    assert c.call("cuStreamQuery", c.one) == SUCCESS


def copy_behind_a_word() -> None:
    c = Words()
    flag, source = ctypes.c_uint32(0), ctypes.c_uint32(42)
    c.check("cuStreamWaitValue32", c.one, ctypes.addressof(flag), 1, 1)
    c.check("cuMemcpyHtoDAsync_v2", c.word, ctypes.byref(source), 4, c.one)
    assert c.now() == 0
    source.value, flag.value = 43, 1
    c.check("cuStreamSynchronize", c.one)
    assert c.now() == 43
