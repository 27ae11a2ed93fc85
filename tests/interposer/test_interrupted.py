"""Tests that threads cancelled or interrupted inside the library leave no lock and no charge behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import LINK_CUDA, Container, compiled, finishing
from tests.interposer.launching import OPEN, RELEASED, STINGY, WANT, ends_well, goes_on, line
from tests.interposer.programs import interrupted
from tests.interposer.reference_arbiter import Misbehaviour

HERE = Path(__file__).parent
SHARED_AND_SLOW = contract.LEASE_COUNTED | contract.LEASE_CONTENDED


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program cancelled.c."""
    return compiled("cancelled.c", tmp_path_factory.mktemp("interrupted") / "cancelled", *LINK_CUDA)


@pytest.mark.slow
def test_thread_cancelled_while_starting_cuda_does_not_block_others(
    container: Container, make_arbiter: ArbiterMaker, program: Path
) -> None:
    make_arbiter(MIB)
    result = container.run([program, "start"])
    assert (result.returncode, result.stdout) == (0, "went on\n"), result.stderr


def test_thread_cancelled_at_the_gate_no_longer_counts_as_waiting(
    container: Container, make_arbiter: ArbiterMaker, program: Path
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with finishing(container.start([program, "gate"])) as process:
        assert line(process) == "waiting"
        arbiter.hears(WANT)
        goes_on(process)
        assert line(process) == "cancelled"
        arbiter.say(OPEN, 0, 0, 1)
        assert line(process) == "idle"
        arbiter.say(OPEN, 0, SHARED_AND_SLOW, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)  # no thread counts as waiting
        assert ends_well(process) == "went on"


def test_thread_cancelled_during_reclaim_does_not_block_others(
    container: Container, make_arbiter: ArbiterMaker, program: Path
) -> None:
    make_arbiter(128 * MIB)
    with finishing(container.start([program, "full"])) as process:
        assert ends_well(process) == "went on"


@pytest.mark.slow
def test_signals_do_not_cut_short_a_reclaim(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(MIB, behaviour=Misbehaviour(reclaim_seconds=0.3))
    container.program(interrupted.allocates_among_signals)


@pytest.mark.slow
def test_threads_cancelled_while_launching_do_not_block_others(
    container: Container, make_arbiter: ArbiterMaker, program: Path
) -> None:
    arbiter = make_arbiter(MIB, behaviour=STINGY)
    with finishing(container.start([program, "queue"])) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert ends_well(process) == "went on"


@pytest.mark.slow
def test_program_that_gets_signals_continues(container: Container, make_arbiter: ArbiterMaker, program: Path) -> None:
    arbiter = make_arbiter(10 * MIB)
    with finishing(container.start([program, "signals"])) as process:
        assert ends_well(process) == "went on"
    assert arbiter.hellos == 1
