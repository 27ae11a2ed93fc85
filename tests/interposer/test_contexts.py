"""Tests that every kind of context has its memory counted and its launches held until the lease."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, with_driver_before
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
from tests.interposer.programs import contexts
from tests.interposer.reference_arbiter import Misbehaviour

pytestmark = pytest.mark.slow

LIMIT = 16 * MIB


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
@pytest.mark.parametrize("way", contexts.WAYS)
def test_memory_is_counted_in_every_kind_of_context(
    container: Container, make_arbiter: ArbiterMaker, way: str, proc: bool
) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(contexts.fills, way, proc, LIMIT)
    assert way == "green" or arbiter.charged() in ([], [0])


@pytest.mark.parametrize("way", contexts.WAYS)
def test_launches_wait_in_every_kind_of_context(container: Container, make_arbiter: ArbiterMaker, way: str) -> None:
    arbiter = make_arbiter(LIMIT, behaviour=Misbehaviour(grants=False))
    with client(container, contexts.launches, way) as process:
        arbiter.hears(contract.MESSAGE_WANT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
        arbiter.say(contract.MESSAGE_OPEN, 0, 0, 1)
        output, errors = process.communicate(timeout=120)
        assert output == "0\n", errors


def test_physical_memory_can_be_created_without_a_context(container: Container, make_arbiter: ArbiterMaker) -> None:
    """NCCL and allocators do this: before any context exists, in threads without one, and also for host memory."""
    make_arbiter(LIMIT)
    container.program(contexts.handles_without_a_context, LIMIT)


def test_releasing_a_primary_context_that_lives_on_leaks_nothing(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    """Libraries do this around each of their calls, so an event leaked each time would add up to a megabyte."""
    make_arbiter(LIMIT, behaviour=Misbehaviour(flags=contract.LEASE_COUNTED))
    container.program(contexts.retains_and_releases)


def test_concurrent_releases_refund_the_primary_context_memory(
    container: Container, make_arbiter: ArbiterMaker, tmp_path: Path
) -> None:
    make_arbiter(LIMIT)
    unhurried = with_driver_before(container, "unhurried.c", tmp_path)
    unhurried.program(contexts.threads_release_the_last_at_once, LIMIT)


def test_release_of_a_context_does_not_return_the_lease_while_kernels_run(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    waits_for_both_kernels(container, make_arbiter(LIMIT, behaviour=STINGY), contexts.releases_while_kernels_run)


@pytest.fixture
def strict(container: Container, tmp_path: Path) -> Container:
    """A container with a driver that ends the process if it uses a context that has ended."""
    return with_driver_before(container, "strict.c", tmp_path)


@pytest.mark.parametrize("end", ["cuGreenCtxDestroy", "cuCtxDetach"])
def test_helper_does_not_use_a_context_that_has_ended(strict: Container, make_arbiter: ArbiterMaker, end: str) -> None:
    arbiter = make_arbiter(LIMIT, behaviour=STINGY)
    with client(strict, contexts.ends_a_context, end) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED, 1)
        assert line(process) == "ended", ends_well(process)
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        ends_well(process)


def test_helper_does_not_call_the_driver_after_exit(strict: Container, make_arbiter: ArbiterMaker) -> None:
    """While kernels run and another share waits, the helper queries the driver all the time."""
    arbiter = make_arbiter(LIMIT, behaviour=STINGY)
    with client(strict, contexts.exits_while_a_kernel_runs) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, contract.LEASE_COUNTED | contract.LEASE_CONTENDED, 1)
        assert line(process) == "running"
        arbiter.say(REVOKE, 0, 0, 1)
        ends_well(process)
