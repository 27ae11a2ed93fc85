"""Tests that the heap and printf buffer of a context are charged."""

from __future__ import annotations

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.programs import heap

LIMIT = 256 * MIB


def test_heap_is_charged_as_it_grows_and_shrinks(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    assert container.program(heap.grows_and_shrinks).split() == ["156", "106", "100", "206", "256"]


def test_heap_above_the_limit_is_refused_and_the_old_one_stays(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    assert container.program(heap.above_the_limit) == "0"


def test_heap_is_refunded_with_its_context(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    assert container.program(heap.ends_with_its_context) == "256"
