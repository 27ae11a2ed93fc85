"""Tests that a context's memory is charged before its creation and refunded at its end, and that measured overhead
counts.
"""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, lines_of_the_library
from tests.interposer.programs import allocating, context_cost
from tests.programs import command

LIMIT = 64 * MIB
CONTEXT = 10 * MIB


@pytest.mark.parametrize("end", context_cost.ENDS)
def test_primary_context_is_charged_once_and_refunded(
    container: Container, make_arbiter: ArbiterMaker, end: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=CONTEXT)
    shown = container.program(context_cost.primary, end)
    assert shown == "charged once"


def test_created_contexts_are_charged_and_refunded(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=CONTEXT)
    container.program(context_cost.contexts_of_its_own)


def test_context_that_does_not_fit_is_refused_with_a_message(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=CONTEXT, overhead_bytes=LIMIT - CONTEXT + 1)
    ended = container.run(command(allocating.allocates, 1))
    assert "cuDevicePrimaryCtxRetain: 2" in ended.stderr
    assert lines_of_the_library(ended.stderr) == [
        "gpushare: no memory for a CUDA context: it needs about 10 MiB on this GPU, and 54 of the container's 64 MiB are "
        "in use: end some of its processes, or request more (gpushare.io/memory)"
    ]
    assert arbiter.charged() == []


def test_threads_that_retain_the_primary_context_together_pay_once(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, context_bytes=LIMIT)  # enough for exactly one
    shown = container.program(context_cost.primary_by_threads)
    assert shown == str([0] * 8)
    assert arbiter.charged() in ([LIMIT], [])  # empty if the process has already ended


@pytest.mark.slow
def test_measured_overhead_counts_and_can_exceed_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    arbiter.set(0, overhead_bytes=4 * MIB)
    container.program(context_cost.fills_what_is_left)
    arbiter.set(0, overhead_bytes=LIMIT + MIB)
    container.program(context_cost.nothing_left)


def test_context_on_a_gpu_outside_the_share_is_not_charged(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)  # on the first GPU
    arbiter.set(0, context_bytes=LIMIT)
    container.program(context_cost.on_another_gpu)
    assert arbiter.charged() == []
