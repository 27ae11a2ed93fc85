"""Runs programs that launch in a test's container, and exchanges lines with them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpushare import contract
from tests.interposer.container import Container, finishing
from tests.interposer.reference_arbiter import Misbehaviour, ReferenceArbiter
from tests.programs import Parameters, command

STINGY = Misbehaviour(grants=False)  # the test grants the leases
OPEN, REVOKE, WANT = contract.MESSAGE_OPEN, contract.MESSAGE_REVOKE, contract.MESSAGE_WANT
CLOSED, RELEASED = contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED


@contextmanager
def client(
    container: Container,
    function: Callable[Parameters, None],
    *values: Parameters.args,
    **named: Parameters.kwargs,
) -> Iterator[subprocess.Popen[str]]:
    """Run a test program for the duration of the block."""
    with finishing(container.start(command(function, *values, **named))) as process:
        yield process


def line(process: subprocess.Popen[str]) -> str:
    """Return the program's next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lines_until(process: subprocess.Popen[str], beginning: str) -> list[str]:
    """Return the program's lines before the first one with this beginning."""
    assert process.stdout is not None
    lines: list[str] = []
    for text in process.stdout:
        if text.startswith(beginning):
            return lines
        lines.append(text)
    raise AssertionError(f"ended with {process.wait(10)} after {lines}")


def goes_on(process: subprocess.Popen[str]) -> None:
    """Let the program continue from `input()`."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ends_well(process: subprocess.Popen[str], *, seconds: float = 120.0) -> str:
    """Let the program continue and expect it to succeed in time. Returns the rest of its output."""
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
    """Check that a program with two long kernels returns a revoked lease only after both have ended.

    The arbiter must be STINGY.
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
