"""Tests that a launch waits at the gate of its stream's GPU, with any current context or none.

CUDA supports this since version 12 for library kernels, which the runtime launches, and always did for graphs.
"""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, with_driver_before
from tests.interposer.launching import OPEN, RELEASED, REVOKE, STINGY, WANT, client, ends_well, line
from tests.interposer.programs import where_streams_are

WORK = pytest.mark.parametrize("graph", [False, True], ids=["kernel", "graph"])


@WORK
def test_thread_without_a_context_waits(container: Container, make_arbiter: ArbiterMaker, graph: bool) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, where_streams_are.without_a_context, graph) as process:
        assert arbiter.hears(WANT) == (0, 0, 0)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "launched"
        ends_well(process)


@WORK
def test_thread_with_another_context_waits_for_the_gpu_of_its_stream(
    container: Container, make_arbiter: ArbiterMaker, graph: bool
) -> None:
    arbiter = make_arbiter(MIB, MIB, behaviour=STINGY)
    with client(container, where_streams_are.with_another_context, graph) as process:
        assert arbiter.hears(WANT)[0] == 0
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "the first"
        assert arbiter.hears(WANT)[0] == 1
        arbiter.say(OPEN, 1, contract.LEASE_COUNTED, 2)
        assert line(process) == "the second"
        ends_well(process)


@pytest.mark.slow
def test_closed_gate_of_the_threads_context_does_not_matter(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB, MIB, behaviour=STINGY)
    with client(container, where_streams_are.past_a_closed_gate) as process:
        assert arbiter.hears(WANT)[0] == 1
        arbiter.say(OPEN, 1, contract.LEASE_COUNTED, 1)
        assert line(process) == "launched"
        with pytest.raises(queue.Empty):
            arbiter.hears(WANT, seconds=0.05)
        ends_well(process)


@pytest.mark.slow
def test_lease_waits_for_launches_of_a_thread_without_a_context(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    """The arbiter waits before it lets the next share begin, and the thread itself must not run far ahead."""
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with client(container, where_streams_are.launches_far) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert float(line(process)) < 0.3
        assert line(process) == "launched"
        arbiter.say(REVOKE, 0, 0, 1)
        with pytest.raises(queue.Empty):
            arbiter.hears(RELEASED, seconds=0.05)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        ends_well(process)


def test_reused_stream_handle_on_another_gpu_has_no_pass(
    container: Container, make_arbiter: ArbiterMaker, tmp_path: Path
) -> None:
    """Drivers reuse handles, even for a stream on another GPU."""
    arbiter = make_arbiter(MIB, MIB, behaviour=STINGY)
    with client(with_driver_before(container, "thrifty.c", tmp_path), where_streams_are.uses_a_handle_again) as process:
        assert arbiter.hears(WANT)[0] == 0
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert arbiter.hears(WANT)[0] == 1
        arbiter.say(OPEN, 1, contract.LEASE_COUNTED, 2)
        assert line(process) == "launched"
        ends_well(process)
