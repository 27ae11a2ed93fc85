"""Tests the library with arbiters of other protocol versions."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from gpushare import contract
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, finishing, lines_of_the_library
from tests.interposer.launching import line
from tests.interposer.programs import versions
from tests.interposer.reference_arbiter import Misbehaviour, ReferenceArbiter, Share
from tests.programs import command

UNKNOWN_PAGES = contract.PAGES_LAYOUT + 1
BOTH = {
    "the oldest version": Misbehaviour(version=contract.WIRE_OLDEST),
    "this version": Misbehaviour(),
    "longer messages": Misbehaviour(more=bytes(range(24))),
    "messages of unknown types": Misbehaviour(unknown=True),
}


@pytest.mark.parametrize("behaviour", BOTH.values(), ids=BOTH.keys())
def test_library_works_with_arbiters_of_other_versions(
    container: Container, make_arbiter: ArbiterMaker, behaviour: Misbehaviour
) -> None:
    arbiter = make_arbiter(4 * MIB, behaviour=behaviour)
    container.program(versions.fills_and_launches)
    assert arbiter.reclaims == 1
    assert arbiter.hears(contract.MESSAGE_WANT)[0] == 0


def _asked(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


NOT_UNDERSTOOD = {
    "a version": (Misbehaviour(version=9), "speaks protocol 9 and this library 1 to 3"),
    "pages": (Misbehaviour(layout=UNKNOWN_PAGES), "pages have layout 1 and this library knows layout 0"),
    "a refusal": (Misbehaviour(version=9, refusal="recreate the pod"), "refused this process: recreate the pod"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "sentence"), NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD.keys())
def test_running_program_reports_an_unknown_arbiter_once_and_continues(
    container: Container, arbiter_directory: Path, uuids: list[str], behaviour: Misbehaviour, sentence: str
) -> None:
    shares = [Share(uuids[0], 4 * MIB)]
    program = command(versions.fills_and_launches_for_each_line)
    before = ReferenceArbiter(arbiter_directory, shares)
    newer = ReferenceArbiter(arbiter_directory, shares, behaviour)
    last = ReferenceArbiter(arbiter_directory, shares, Misbehaviour(version=contract.WIRE_OLDEST), after=before)
    with before, finishing(container.start(program)) as process:
        assert line(process) == "ready"
        assert _asked(process) == "well\n"
        before.stop()
        with newer:
            assert process.stderr is not None
            assert "MiB refused" in process.stderr.readline()  # because it has filled its share
            assert "the arbiter went away" in process.stderr.readline()
            message = process.stderr.readline()
            assert sentence in message
            assert "this program keeps its current limits" in message
            assert _asked(process) == "well\n"
            assert newer.hellos < 8
        # It returns to an arbiter that it understands, and prints nothing more.
        with last:
            until = time.monotonic() + 60
            while last.reclaims == 0:  # its first message
                assert time.monotonic() < until, "it has not reconnected"
                time.sleep(0.05)
            assert _asked(process) == "well\n"
            _, errors = process.communicate("", timeout=120)
    assert lines_of_the_library(errors) == []
