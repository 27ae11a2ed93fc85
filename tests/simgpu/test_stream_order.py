"""Work in streams other than kernels keeps its order: host functions, words in memory, copies after them."""

from __future__ import annotations

import pytest

from tests.simgpu.conftest import Node
from tests.simgpu.programs import stream_order


@pytest.mark.slow
def test_host_function_runs_between_the_kernels_of_its_stream(node: Node) -> None:
    node.program(stream_order.function_of_the_host)


def test_stream_waits_for_a_word_that_another_stream_writes(node: Node) -> None:
    node.program(stream_order.waits_for_a_word)


def test_word_written_by_the_host_releases_a_stream(node: Node) -> None:
    node.program(stream_order.word_of_the_host)


def test_copy_after_a_word_waits_for_it(node: Node) -> None:
    node.program(stream_order.copy_behind_a_word)
