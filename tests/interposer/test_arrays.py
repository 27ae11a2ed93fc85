"""Tests that arrays are charged for the memory that they take, and sparse ones for what is mapped into them.

On simulated GPUs rows have multiples of 64 bytes and come in groups of eight; the driver reports this to the library.
"""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.programs import arrays

LIMIT = 64 * MIB


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
def test_one_byte_above_the_limit_is_refused(container: Container, make_arbiter: ArbiterMaker, proc: bool) -> None:
    make_arbiter(LIMIT)
    container.program(arrays.fills_with_arrays, proc)


def test_every_kind_of_array_is_charged(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(arrays.every_kind)


def test_arrays_are_refunded_when_their_context_ends(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(arrays.ends_a_context)


def test_sparse_array_keeps_mapped_memory_charged(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(arrays.sparse)
