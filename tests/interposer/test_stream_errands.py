"""Streams that wait for the host: what they hold back holds nothing else back, and is charged and gated as ever."""

from __future__ import annotations

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.launching import OPEN, RELEASED, REVOKE, STINGY, WANT, client, ends_well, line


def test_a_stream_that_waits_for_a_word_holds_back_no_other_and_its_memory_is_charged(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(64 * MIB)
    container.python(
        """
c = Cuda()
waiting, other, kernel = c.made("cuStreamCreate", 1), c.made("cuStreamCreate", 1), c.kernel("k_100us")
_, word = c.allocate(64)
c.check("cuMemsetD32_v2", word, ctypes.c_uint(0), 1)
c.check("cuStreamWaitValue32_v2", waiting, word, ctypes.c_uint(1), 0)
c.launch(kernel, waiting)
result, pointer = c.allocate(32 * MIB, "cuMemAllocAsync", waiting)
assert result == SUCCESS and c.info()[0] < 32 * MIB
assert c.allocate(33 * MIB)[0] == OUT_OF_MEMORY
c.launch(kernel, other)
c.check("cuStreamSynchronize", other)
assert c.call("cuStreamQuery", waiting) == 600
c.check("cuMemsetD32Async", word, ctypes.c_uint(1), 1, other)
c.check("cuMemFreeAsync", pointer, waiting)
c.check("cuStreamSynchronize", waiting)
assert c.info()[0] >= 64 * MIB - 64
"""
    )


def test_a_lease_ends_while_a_stream_runs_functions_of_the_host(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = """
c = Cuda()
function, called = kernel(c, 1000), []
host = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data))
stream = c.made("cuStreamCreate", 1)
assert launch(c, function, "cuLaunchKernel", stream) == 0
c.check("cuLaunchHostFunc", stream, host, 1)
say("launched")
input()
c.check("cuStreamSynchronize", stream)
assert called == [1]
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "launched"
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        ends_well(process)
