"""What streams do besides kernels has its place among them: functions of the host, words in memory, copies behind them."""

from __future__ import annotations

from tests.simgpu.conftest import Node
from tests.simgpu.test_side_by_side import client

WORDS = """
_, word = c.allocate(8)
def now():
    value = ctypes.c_uint32()
    c.check("cuMemcpyDtoHAsync_v2", ctypes.byref(value), word, 4, reader)
    c.check("cuStreamSynchronize", reader)
    return value.value
reader = stream()
c.check("cuMemsetD32_v2", word, 0, 1)
"""


def test_a_function_of_the_host_is_called_between_the_kernels_of_its_stream(node: Node) -> None:
    client(
        node,
        """
calls, k = [], c.kernel("k_20ms")
called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: (time.sleep(0.05), calls.append((data, time.monotonic()))))
began = time.monotonic()
c.launch(k, one)
c.check("cuLaunchHostFunc", one, called, ctypes.c_void_p(7))
c.launch(c.kernel("k_10pct_20ms"), one)
free = recorded(two)
assert not calls and c.call("cuEventQuery", free) == SUCCESS, "others do not wait"
c.check("cuStreamSynchronize", one)
((data, at),) = calls
assert data == 7 and at - began >= 0.07 and time.monotonic() - at >= 0.02
""",
    )


def test_a_stream_waits_for_a_word_that_another_one_writes_in_its_order(node: Node) -> None:
    client(
        node,
        WORDS
        + """
c.check("cuStreamWaitValue32", one, word, 1, 1)
c.launch(c.kernel("k_1ms"), one)
c.launch(c.kernel("k_10pct_50ms"), two)
c.check("cuStreamWriteValue32", two, word, 1, 0)
assert c.call("cuStreamQuery", one) == c.call("cuStreamQuery", two) == 600
assert now() == 0
c.check("cuStreamSynchronize", one)
assert now() == 1
assert c.call("cuStreamQuery", two) == SUCCESS
""",
    )


def test_a_word_written_by_the_host_lets_a_stream_go_on(node: Node) -> None:
    client(
        node,
        """
word = ctypes.c_uint64(0)
c.check("cuStreamWaitValue64", one, ctypes.addressof(word), 5, 0)
c.launch(c.kernel("k_1ms"), one)
event = recorded(one)
c.check("cuStreamWaitEvent", two, event, 0)
c.launch(c.kernel("k_1ms"), two)
time.sleep(0.03)
assert c.call("cuStreamQuery", one) == c.call("cuEventQuery", event) == c.call("cuStreamQuery", two) == 600
word.value = 5
c.check("cuStreamSynchronize", two)
assert c.call("cuStreamQuery", one) == SUCCESS
""",
    )


def test_a_copy_behind_a_word_comes_after_it(node: Node) -> None:
    client(
        node,
        WORDS
        + """
flag, source = ctypes.c_uint32(0), ctypes.c_uint32(42)
c.check("cuStreamWaitValue32", one, ctypes.addressof(flag), 1, 1)
c.check("cuMemcpyHtoDAsync_v2", word, ctypes.byref(source), 4, one)
assert now() == 0
source.value, flag.value = 43, 1
c.check("cuStreamSynchronize", one)
assert now() == 43
""",
    )
