"""Tests streams that wait for the host: they delay no other stream, and their memory and launches count as usual."""

from __future__ import annotations

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.launching import OPEN, RELEASED, REVOKE, STINGY, WANT, client, ends_well, line
from tests.interposer.programs import stream_errands


def test_stream_that_waits_for_a_value_does_not_block_others(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(64 * MIB)
    container.program(stream_errands.waits_for_a_word)


def test_lease_is_returned_after_host_functions_in_a_stream(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, stream_errands.function_of_the_host) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "launched"
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        ends_well(process)
