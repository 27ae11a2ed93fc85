"""The simulated CUDA driver is strict: misuse returns an error, or ends the program with a sentence."""

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
def test_use_after_the_end_of_an_object_ends_the_program(node: Node, what: str) -> None:
    result = node.run(command(cuda_strict.uses_what_has_ended, what))
    assert result.returncode == -signal.SIGABRT, result.stderr
    assert result.stdout == ""
    assert f"simgpu: this program used {what} (0x" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_handle_of_another_kind_ends_the_program(node: Node) -> None:
    result = node.run(command(cuda_strict.event_for_a_stream))
    assert result.returncode == -signal.SIGABRT
    assert "as a stream, which it is not" in result.stderr


def test_objects_of_a_context_are_rejected_in_others(node: Node) -> None:
    node.program(cuda_strict.other_contexts)


def test_primary_context_keeps_its_handle(node: Node) -> None:
    node.program(cuda_strict.primary_context)


def test_copies_beyond_an_allocation_are_rejected(node: Node) -> None:
    node.program(cuda_strict.copies_beyond)


def test_faulting_kernel_breaks_the_context_until_it_is_recreated(node: Node) -> None:
    node.program(cuda_strict.faults)


def test_driver_is_deinitialized_in_destructors(node: Node, tmp_path: Path) -> None:
    """Loaders end libraries in either order, so one of the two libraries is ended after the driver."""
    libraries = [str(tmp_path / name) for name in ("one.so", "other.so")]
    for library in libraries:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, HERE / "last.c"], check=True)
    said = node.program(cuda_strict.frees_at_its_end, *libraries)
    assert set(said.split()) == {"0", "4"}, "CUDA_ERROR_DEINITIALIZED after its end"
