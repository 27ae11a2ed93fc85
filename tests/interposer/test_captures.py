"""What is being captured is left alone; what runs besides, and after it, is waited for as ever, however a capture ends."""

from __future__ import annotations

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.launching import (
    OPEN,
    RELEASED,
    REVOKE,
    STINGY,
    WANT,
    client,
    ends_well,
    line,
    waits_for_both_kernels,
)


def test_a_capture_survives_the_end_of_a_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = """
c = Cuda()
function = kernel(c, 1000)
assert launch(c, function) == 0
stream, graph, event = PTR(), PTR(), PTR()
c.check("cuStreamCreate", ctypes.byref(stream), 0)
c.check("cuStreamBeginCapture_v2", stream, 0)
other = PTR()
c.check("cuStreamCreate", ctypes.byref(other), 0)
assert c.call("cuStreamEndCapture", other, ctypes.byref(graph)) != 0  # it has none, so none has ended
say("capturing")
for _ in range(50):
    assert launch(c, function, "cuLaunchKernel", stream) == 0
input()
c.check("cuStreamEndCapture", stream, ctypes.byref(graph))
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "capturing"
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        ends_well(process)


ENDS = {
    "the capture": "c.check('cuStreamEndCapture', stream, ctypes.byref(PTR()))",
    "its stream": "c.check('cuStreamDestroy_v2', stream)",
    "its stream, by the old call": "c.check('cuStreamDestroy', stream)",
    "its context": "c.check('cuCtxDestroy_v2', context); c.use(0)",
    "the primary context": "c.check('cuDevicePrimaryCtxReset_v2', 0); c.use(0)",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_work_is_waited_for_again_when_a_capture_has_ended(
    container: Container, make_arbiter: ArbiterMaker, end: str
) -> None:
    before = f"""
context, stream = PTR(), PTR()
if "context" in {end!r}:
    c.check("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
if "Primary" in {end!r}:
    c.use(0)
c.check("cuStreamCreate", ctypes.byref(stream), 0)
c.check("cuStreamBeginCapture_v2", stream, 0)
{end}
"""
    waits_for_both_kernels(container, make_arbiter(MIB, behaviour=STINGY), before)
