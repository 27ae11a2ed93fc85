"""What is being captured is left alone; what runs besides, and after it, is waited for as ever, however a capture ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import DRIVERS, Container
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


OPEN_CAPTURE = """
side, other = PTR(), PTR()
for each in side, other:
    c.check("cuStreamCreate", ctypes.byref(each), 1)
c.check("cuStreamBeginCapture_v2", side, 2)
"""
WHERE = {
    "the default stream": ("None", ""),
    "another stream": ("other", ""),
    "a stream that is destroyed": ("other", "c.check('cuStreamDestroy_v2', other)"),
}


@pytest.mark.parametrize(("stream", "after"), WHERE.values(), ids=WHERE.keys())
def test_work_is_waited_for_beside_a_capture_that_nobody_ends(
    container: Container, make_arbiter: ArbiterMaker, stream: str, after: str
) -> None:
    waits_for_both_kernels(container, make_arbiter(MIB, behaviour=STINGY), OPEN_CAPTURE, stream, after)


def test_work_of_a_stream_is_waited_for_when_a_capture_begins_in_it_after_that(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    before = "other = PTR(); c.check('cuStreamCreate', ctypes.byref(other), 1)"
    after = "c.check('cuStreamBeginCapture_v2', other, 2)"
    waits_for_both_kernels(container, make_arbiter(MIB, behaviour=STINGY), before, "other", after)


@pytest.mark.parametrize(("stream", "after"), WHERE.values(), ids=WHERE.keys())
def test_work_is_waited_for_with_drivers_that_have_no_event_for_a_context(
    container: Container, make_arbiter: ArbiterMaker, tmp_path: Path, stream: str, after: str
) -> None:
    """Before CUDA 12.5."""
    driver = (DRIVERS / "libcuda.so.1").read_bytes()
    assert driver.count(b"\0cuCtxRecordEvent\0") > 0
    (tmp_path / "libcuda.so.1").write_bytes(driver.replace(b"\0cuCtxRecordEvent\0", b"\0cuCtxRecordEvenX\0"))
    old = replace(container, drivers=tmp_path)
    before = "other = PTR(); c.check('cuStreamCreate', ctypes.byref(other), 1)"
    waits_for_both_kernels(old, make_arbiter(MIB, behaviour=STINGY), before, stream, after)


def test_launches_do_not_run_far_ahead_beside_a_capture(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    code = f"""
c = Cuda()
function = kernel(c, 1000)
{OPEN_CAPTURE}
for _ in range(100): launch(c, function)
began = time.monotonic()
c.check("cuStreamSynchronize", None)
say(time.monotonic() - began)
"""
    with client(container, code) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert float(ends_well(process)) < 0.05
