"""What streams do besides kernels has its place among them: functions of the host, words in memory, copies behind them."""

from __future__ import annotations

import pytest

from tests.simgpu.conftest import Node
from tests.simgpu.programs import stream_order


@pytest.mark.slow
def test_a_function_of_the_host_is_called_between_the_kernels_of_its_stream(node: Node) -> None:
    node.program(stream_order.function_of_the_host)


def test_a_stream_waits_for_a_word_that_another_one_writes_in_its_order(node: Node) -> None:
    node.program(stream_order.waits_for_a_word)


def test_a_word_written_by_the_host_lets_a_stream_go_on(node: Node) -> None:
    node.program(stream_order.word_of_the_host)


def test_a_copy_behind_a_word_comes_after_it(node: Node) -> None:
    node.program(stream_order.copy_behind_a_word)
