"""The simulated CUDA driver is strict: what a program may not do ends in an error, or ends the program with a sentence."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.programs import command
from tests.simgpu.conftest import Node
from tests.simgpu.programs import cuda_strict

HERE = Path(__file__).parent


@pytest.mark.parametrize("what", cuda_strict.ENDED)
def test_a_program_that_uses_what_has_ended_is_ended(node: Node, what: str) -> None:
    result = node.run(command(cuda_strict.uses_what_has_ended, what))
    assert result.returncode == -signal.SIGABRT, result.stderr
    assert result.stdout == ""
    assert f"simgpu: this program used {what} (0x" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_handle_is_of_its_kind(node: Node) -> None:
    result = node.run(command(cuda_strict.event_for_a_stream))
    assert result.returncode == -signal.SIGABRT
    assert "for a stream, which it is not" in result.stderr


def test_what_belongs_to_a_context_is_used_in_it_alone(node: Node) -> None:
    node.program(cuda_strict.other_contexts)


def test_a_primary_context_has_one_handle(node: Node) -> None:
    node.program(cuda_strict.primary_context)


def test_copies_stay_within_what_was_allocated(node: Node) -> None:
    node.program(cuda_strict.copies_beyond)


def test_after_a_fault_nothing_works_until_the_context_is_made_anew(node: Node) -> None:
    node.program(cuda_strict.faults)


def test_the_driver_is_gone_in_a_programs_last_functions(node: Node, tmp_path: Path) -> None:
    """Loaders end libraries in one order or the other: one of the two is ended after the driver."""
    libraries = [str(tmp_path / name) for name in ("one.so", "other.so")]
    for library in libraries:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, HERE / "last.c"], check=True)
    said = node.program(cuda_strict.frees_at_its_end, *libraries)
    assert set(said.split()) == {"0", "4"}, "CUDA_ERROR_DEINITIALIZED after its end"
