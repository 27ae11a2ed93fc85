"""Tests that captures are not disturbed, and that other work and later work is waited for, however a capture ends."""

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
    goes_on,
    line,
    waits_for_both_kernels,
)
from tests.interposer.programs import captures


def test_capture_survives_the_end_of_a_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, captures.captures_for_long) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "capturing"
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        ends_well(process)


@pytest.mark.parametrize("symbol", ["cuStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph_ptsz"])
def test_recapture_does_not_wait_and_its_graph_launch_does(
    container: Container, make_arbiter: ArbiterMaker, symbol: str
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, captures.captures_again, symbol) as process:
        assert line(process) == "captured"
        goes_on(process)
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        ends_well(process)


@pytest.mark.slow
@pytest.mark.parametrize("end", captures.ENDS)
def test_lease_waits_for_work_after_a_capture_has_ended(
    container: Container, make_arbiter: ArbiterMaker, end: str
) -> None:
    waits_for_both_kernels(container, make_arbiter(MIB, behaviour=STINGY), captures.ends_a_capture, end)


# Whether the work is in a separate stream, and whether that stream is destroyed.
WHERE = {
    "the default stream": (False, False),
    "another stream": (True, False),
    "a stream that is destroyed": (True, True),
}


@pytest.mark.slow
@pytest.mark.parametrize(("own", "destroyed"), WHERE.values(), ids=WHERE.keys())
def test_lease_waits_for_work_during_an_unfinished_capture(
    container: Container, make_arbiter: ArbiterMaker, own: bool, destroyed: bool
) -> None:
    stingy = make_arbiter(MIB, behaviour=STINGY)
    waits_for_both_kernels(container, stingy, captures.in_a_stream, own, destroyed, capture=True)


@pytest.mark.slow
def test_lease_waits_for_work_that_precedes_a_capture_in_its_stream(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    waits_for_both_kernels(container, make_arbiter(MIB, behaviour=STINGY), captures.captures_after_kernels)


@pytest.mark.slow
@pytest.mark.parametrize(("own", "destroyed"), WHERE.values(), ids=WHERE.keys())
def test_lease_waits_for_work_on_drivers_without_context_events(
    container: Container, make_arbiter: ArbiterMaker, tmp_path: Path, own: bool, destroyed: bool
) -> None:
    """Drivers before CUDA 12.5 lack cuCtxRecordEvent."""
    driver = (DRIVERS / "libcuda.so.1").read_bytes()
    assert driver.count(b"\0cuCtxRecordEvent\0") > 0
    (tmp_path / "libcuda.so.1").write_bytes(driver.replace(b"\0cuCtxRecordEvent\0", b"\0cuCtxRecordEvenX\0"))
    old = replace(container, drivers=tmp_path)
    stingy = make_arbiter(MIB, behaviour=STINGY)
    waits_for_both_kernels(old, stingy, captures.in_a_stream, own, destroyed, capture=False)


def test_launches_do_not_run_far_ahead_during_a_capture(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, captures.launches_beside_one) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert float(ends_well(process)) < 0.3
