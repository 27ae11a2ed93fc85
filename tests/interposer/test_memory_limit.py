"""Tests that every kind of allocation is counted to the byte and refunded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import PROBE, Container, lines_of_the_library
from tests.interposer.programs import memory_limit
from tests.programs import command

LIMIT = 64 * MIB


@pytest.mark.parametrize("proc", [False, True], ids=["dlsym", "cuGetProcAddress"])
@pytest.mark.parametrize("kind", memory_limit.KINDS)
def test_one_byte_above_the_limit_is_refused(
    container: Container, make_arbiter: ArbiterMaker, kind: str, proc: bool
) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(memory_limit.byte_above_the_limit, kind, proc, LIMIT)
    assert arbiter.reclaims >= 1, "the arbiter must be asked before a refusal"


def test_container_can_fill_its_share_to_the_byte(container: Container, make_arbiter: ArbiterMaker) -> None:
    limit = 1_234_567_891
    make_arbiter(limit)
    for flags in ([], ["--direct"]):
        result = container.run([PROBE, "--fill", *flags])
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.splitlines()[-1] == f"filled {limit}"


def test_rows_are_charged_with_their_padding(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(memory_limit.rows)
    assert arbiter.charged() in ([], [0])


def test_memory_is_refunded_when_its_context_ends(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(memory_limit.ends_contexts)


def test_failed_free_refunds_nothing(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(memory_limit.frees_wrongly)


def test_physical_memory_counts_until_its_last_handle_and_mapping(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(memory_limit.handles_and_mappings)


def test_each_gpu_has_its_own_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(10 * MIB, 20 * MIB)
    container.program(memory_limit.limit_of_a_device, 0, 10 * MIB)
    container.program(memory_limit.limit_of_a_device, 1, 20 * MIB)
    the_second = replace(container, environment={"CUDA_VISIBLE_DEVICES": "1"})
    the_second.program(memory_limit.limit_of_a_device, 0, 20 * MIB)


def test_stream_ordered_memory_is_charged_to_the_gpu_of_the_stream(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(32 * MIB, 64 * MIB)
    container.program(memory_limit.in_a_stream_elsewhere)


def test_gpu_outside_the_share_is_refused(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(memory_limit.on_another_gpu)


def test_changed_limit_applies_at_once(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(10 * MIB)
    process = container.start(command(memory_limit.allocates_for_each_line))
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(size: int) -> str:
        process.stdin.write(f"{size}\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        return process.stdout.readline().strip()  # type: ignore[union-attr]

    assert ask(11 * MIB) == f"2 {10 * MIB}"
    arbiter.set_limit(0, 12 * MIB)
    assert ask(11 * MIB) == f"0 {12 * MIB}"
    arbiter.set_limit(0, 5 * MIB)
    assert ask(1) == f"2 {5 * MIB}"
    process.communicate("", timeout=120)
    assert process.returncode == 0


def test_arbiter_is_asked_again_while_it_raises_the_limit(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(10 * MIB)
    arbiter.set(0, burst_bytes=20 * MIB)
    limits = iter([14 * MIB, 18 * MIB])  # the first is too low, as if another process had used it
    arbiter.before_a_look = lambda: arbiter.set_limit(0, next(limits, 18 * MIB))
    process = container.start(command(memory_limit.allocates_for_each_line))
    shown, errors = process.communicate(f"{16 * MIB}\n{4 * MIB}\n", timeout=120)
    assert shown.split() == ["0", str(18 * MIB), "2", str(18 * MIB)], errors
    assert arbiter.reclaims == 3, "it is asked no more once the limit stays"


@pytest.mark.parametrize("symbol", ["cuStreamBeginCaptureToCig", "cuStreamBeginCaptureToCig_ptsz"])
def test_work_for_a_graphics_api_is_refused_with_a_message(
    container: Container, make_arbiter: ArbiterMaker, symbol: str
) -> None:
    make_arbiter(LIMIT)
    result = container.run(command(memory_limit.captures_for_graphics, symbol))
    assert result.stdout == "801\n", result.stderr
    (refusal,) = lines_of_the_library(result.stderr)
    assert refusal.startswith(f"gpushare: {symbol} is refused: work recorded for a graphics API")


def test_calls_that_cannot_be_limited_are_refused_with_a_message(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    result = container.run(command(memory_limit.where_no_limit_is_kept))
    assert result.stdout.split() == ["801", "801"]
    refusals = [line for line in result.stderr.splitlines() if "is refused" in line]
    assert len(refusals) == 1, result.stderr
