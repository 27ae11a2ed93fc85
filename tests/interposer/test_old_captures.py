"""Tests the charges of graphs captured and instantiated with functions of other CUDA versions, or in joined streams."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.programs import old_captures
from tests.interposer.programs.graphing import LIMIT

BEGINS = {
    "CUDA 10": "cuStreamBeginCapture",
    "per-thread variant": "cuStreamBeginCapture_v2_ptsz",
    "into a graph": "cuStreamBeginCaptureToGraph",
}
INSTANTIATES = {
    "CUDA 10": "cuGraphInstantiate",
    "CUDA 11": "cuGraphInstantiate_v2",
    "with flags": "cuGraphInstantiateWithFlags",
}


@pytest.mark.parametrize("instantiate", INSTANTIATES.values(), ids=INSTANTIATES.keys())
@pytest.mark.parametrize("begin", BEGINS.values(), ids=BEGINS.keys())
def test_graph_from_any_instantiate_function_is_charged_at_launch(
    container: Container, make_arbiter: ArbiterMaker, begin: str, instantiate: str
) -> None:
    make_arbiter(LIMIT)
    container.program(old_captures.captures, begin, instantiate)


def test_allocation_in_a_joined_stream_belongs_to_the_graph(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(old_captures.joins_a_capture)
