"""Programs that launch, run in a container of the tests, and what is said to them and heard of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpushare import contract
from tests.interposer.container import Container, finishing
from tests.interposer.reference_arbiter import Misbehaviour, ReferenceArbiter
from tests.programs import Parameters, command

STINGY = Misbehaviour(grants=False)  # the test gives the leases
OPEN, REVOKE, WANT = contract.MESSAGE_OPEN, contract.MESSAGE_REVOKE, contract.MESSAGE_WANT
CLOSED, RELEASED = contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED


@contextmanager
def client(
    container: Container,
    function: Callable[Parameters, None],
    *values: Parameters.args,
    **named: Parameters.kwargs,
) -> Iterator[subprocess.Popen[str]]:
    """A program of the tests, gone at the end of the block."""
    with finishing(container.start(command(function, *values, **named))) as process:
        yield process


def line(process: subprocess.Popen[str]) -> str:
    """What it says next."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def goes_on(process: subprocess.Popen[str]) -> None:
    """Let it go on from an `input()`."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ends_well(process: subprocess.Popen[str], *, seconds: float = 120.0) -> str:
    """Let it go on to its end, which comes in time; what it has said since."""
    output, errors = process.communicate("\n", timeout=seconds)
    assert process.returncode == 0, output + errors
    return output.strip()


def waits_for_both_kernels(
    container: Container,
    arbiter: ReferenceArbiter,
    function: Callable[Parameters, None],
    *values: Parameters.args,
    **named: Parameters.kwargs,
) -> None:
    """A program launches two long kernels and loses its lease: it gives it back when both have ended.

    arbiter: STINGY.
    """
    with client(container, function, *values, **named) as process:
        arbiter.hears(WANT)
        arbiter.say(OPEN, 0, 0, 1)
        launched = float(line(process).split()[1])
        line(process)
        arbiter.say(REVOKE, 0, 0, 1)
        assert arbiter.hears(RELEASED) == (0, 0, 1)
        assert time.monotonic() - launched > 0.45
        ends_well(process)
