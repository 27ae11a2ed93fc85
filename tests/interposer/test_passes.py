"""Tests that a pass from earlier launches is void once its assumptions no longer hold.

Each program launches many short kernels, so that several are counted at once; then the test changes something.
"""

from __future__ import annotations

import queue

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.launching import OPEN, RELEASED, REVOKE, STINGY, WANT, client, ends_well, goes_on, line
from tests.interposer.programs import passes


def test_closed_gate_stops_the_next_launch(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, passes.many_and_one) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "many"
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        goes_on(process)
        assert arbiter.hears(WANT) == (0, 0, 0)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 2)
        assert line(process) == "one more"
        ends_well(process)


def test_launch_on_another_gpu_waits_for_its_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, MIB, behaviour=STINGY)
    with client(container, passes.many_and_one_elsewhere) as process:
        assert arbiter.hears(WANT)[0] == 0
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert arbiter.hears(WANT)[0] == 1
        arbiter.say(OPEN, 1, contract.LEASE_COUNTED, 2)
        assert line(process) == "the other"
        ends_well(process)


@pytest.mark.slow
def test_program_that_keeps_launching_keeps_its_lease(container: Container, make_arbiter: ArbiterMaker) -> None:
    """The program makes fewer launches between two polls than one pass covers, and its GPU is often idle."""
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, passes.many_and_a_few) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "many"
        with pytest.raises(queue.Empty):
            arbiter.hears(RELEASED, seconds=1)
        assert line(process) == "enough"
        assert arbiter.hears(RELEASED) == (0, 0, 1)  # and it notices when the launches stop
        ends_well(process)


def test_reused_context_handle_on_another_gpu_has_no_pass(container: Container, make_arbiter: ArbiterMaker) -> None:
    """A driver may reuse a handle at once."""
    arbiter = make_arbiter(MIB, MIB, behaviour=STINGY)
    with client(container, passes.context_in_the_place_of_another) as process:
        assert arbiter.hears(WANT)[0] == 0
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "True"
        assert arbiter.hears(WANT)[0] == 1
        arbiter.say(OPEN, 1, contract.LEASE_COUNTED, 2)
        assert line(process) == "launched"
        ends_well(process)
