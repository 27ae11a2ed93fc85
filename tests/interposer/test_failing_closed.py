"""Tests that without an arbiter a container with a share gets an error and one line, and never the whole GPU."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import IMPATIENT_LIBRARY, PROBE, Container, lines_of_the_library
from tests.interposer.launching import line
from tests.interposer.programs import failing_closed
from tests.interposer.reference_arbiter import Misbehaviour
from tests.programs import command

WHOLE = 1 << 40


def expect_closed(container: Container, sentence: str) -> None:
    result = container.run([PROBE, "--nvml", "--allocate", "1"])
    assert result.returncode == 1
    assert result.stdout == "cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY (802)\n"
    (line,) = lines_of_the_library(result.stderr)
    assert sentence in line
    assert result.stderr == line + "\n"


def test_cuda_does_not_start_without_an_arbiter(container: Container) -> None:
    expect_closed(
        container,
        "cannot be reached at /run/gpushare/arbiter.sock: No such file or directory: CUDA starts in this container once "
        "the gpushare agent runs on this node; then run the program again",
    )


def test_cuda_does_not_start_with_a_dead_socket(container: Container, arbiter_directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(arbiter_directory / contract.ARBITER_SOCKET_NAME))
    expect_closed(container, "Connection refused")


CASES = {
    "refused": (Misbehaviour(refusal="the pod has no share"), "refused this process: the pod has no share"),
    "another protocol version": (
        Misbehaviour(version=4),
        "speaks protocol 4 and this library 1 to 3: restart the container",
    ),
    "protocol version 0": (Misbehaviour(version=0), "speaks protocol 0 and this library 1 to 3: restart the container"),
    "another page layout": (
        Misbehaviour(layout=7),
        "pages have layout 7 and this library knows layout 0: restart the container",
    ),
    "refused in another protocol version": (
        Misbehaviour(refusal="recreate the pod", version=9),
        "refused this process: recreate the pod",
    ),
    "one page": (Misbehaviour(descriptors=1), "came with 1 of 2 pages"),
    "no page": (Misbehaviour(descriptors=0), "came with 0 of 2 pages"),
}


@pytest.mark.parametrize(("behaviour", "sentence"), CASES.values(), ids=CASES.keys())
def test_cuda_does_not_start_if_the_arbiter_misbehaves(
    container: Container, make_arbiter: ArbiterMaker, behaviour: Misbehaviour, sentence: str
) -> None:
    make_arbiter(WHOLE, behaviour=behaviour)
    expect_closed(container, sentence)


@pytest.mark.slow
def test_start_times_out_if_the_arbiter_never_answers(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(WHOLE, behaviour=Misbehaviour(silent=True))
    expect_closed(replace(container, preload=(IMPATIENT_LIBRARY,)), "does not answer")


def test_every_attempt_fails_and_only_the_first_prints(container: Container) -> None:
    result = container.run(command(failing_closed.attempts))
    assert result.stdout == "[802, 802, 802] 802 802\n"
    assert len(lines_of_the_library(result.stderr)) == 1


def test_cuda_starts_once_the_arbiter_is_back(container: Container, make_arbiter: ArbiterMaker) -> None:
    process = container.start(command(failing_closed.starts_twice))
    assert line(process) == "802"
    make_arbiter(MIB)
    output, _ = process.communicate("\n", timeout=120)
    assert output == "0\n"


def test_nothing_is_printed_on_success(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(5 * MIB)
    assert lines_of_the_library(container.run([PROBE]).stderr) == []


def test_threads_that_start_cuda_together_join_once(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(MIB)
    container.program(failing_closed.starts_in_threads)
    assert arbiter.hellos == 1
