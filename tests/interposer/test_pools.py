"""Tests that pools are charged for the memory that they hold on the GPU, not for what they have handed out.

Pools of simulated GPUs grow in steps of 32 MiB, and shrink when the program waits for the GPU.
"""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, finishing
from tests.interposer.programs import allocating, pools
from tests.interposer.reference_arbiter import Misbehaviour
from tests.programs import command

LIMIT = 256 * MIB


def test_a_pool_is_charged_by_the_pieces_that_it_takes(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(pools.takes_pieces)
    assert arbiter.reclaims == 0


def test_what_a_pool_keeps_stays_charged_until_it_is_trimmed(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.keeps_until_trimmed)


@pytest.mark.parametrize(
    "symbol",
    [
        "cuCtxSynchronize",
        "cuCtxSynchronize_v2",
        "cuStreamSynchronize",
        "cuStreamSynchronize_ptsz",
        "cuEventSynchronize",
    ],
)
def test_others_have_what_a_pool_gave_back_when_its_program_waited(
    container: Container, make_arbiter: ArbiterMaker, symbol: str
) -> None:
    arbiter = make_arbiter(LIMIT)
    with finishing(container.start(command(pools.frees_and_waits, symbol))) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "freed\n"
        assert sum(arbiter.charged()) == 224 * MIB
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "waited\n", process.communicate(timeout=10)
        assert sum(arbiter.charged()) == 0


@pytest.mark.parametrize("symbol", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
@pytest.mark.parametrize("kind", [pools.PINNED, pools.MANAGED], ids=["pinned", "managed"])
def test_a_pool_that_is_asked_for_by_its_place_meets_the_limit(
    container: Container, make_arbiter: ArbiterMaker, symbol: str, kind: int
) -> None:
    arbiter = make_arbiter(LIMIT)
    with finishing(container.start(command(pools.fills_a_pool_of_a_place, symbol, kind))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n", process.communicate(timeout=60)
        assert sum(arbiter.charged()) == LIMIT
        output, errors = process.communicate("\n", timeout=60)
        assert (output, process.returncode) == ("freed\n", 0), errors
    assert sum(arbiter.charged()) == 0


def test_a_pool_of_another_gpu_gives_nothing(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.takes_from_the_pool_of_another_gpu)


def test_a_pool_gives_way_to_other_memory_before_anything_is_refused(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(pools.gives_way)


def test_a_full_pool_hands_out_again_what_was_freed_in_the_same_stream(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(pools.frees_and_takes_in_a_stream)


def test_a_full_pool_waits_for_what_another_stream_has_freed(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.frees_and_takes_in_another_stream)


def test_a_pool_that_took_more_than_fits_gives_it_back(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.takes_more_than_fits)


def test_nobody_waits_while_the_arbiter_looks_for_what_another_thread_needs(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT, behaviour=Misbehaviour(reclaim_seconds=1))
    taken = int(container.program(pools.takes_while_another_thread_is_refused))
    assert arbiter.reclaims == 2
    assert taken > 20, "it could not take anything in those two seconds"


def test_a_destroyed_pool_is_charged_until_its_last_block_is_freed(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(pools.destroys)


def test_a_free_that_fails_leaves_a_pool_as_it_was(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.frees_wrongly)


@pytest.mark.slow
def test_threads_that_share_a_pool_leave_it_charged_for_what_it_has(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(pools.shares_with_threads)
    assert arbiter.charged() == []


@pytest.mark.slow
def test_a_killed_process_leaves_no_pool_behind(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    for _ in range(3):
        with finishing(container.start(command(pools.keeps_until_it_is_killed))) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "kept\n"
        container.program(pools.takes_all)


def test_a_driver_that_cannot_tell_how_large_a_pool_is_gives_no_memory_of_pools(
    container: Container, make_arbiter: ArbiterMaker, tmp_path: object
) -> None:
    make_arbiter(LIMIT)
    for gpu in container.gpus.glob("gpu*"):
        version_at = 16  # after magic, version, size and index
        with gpu.open("r+b") as image:
            image.seek(version_at + 4)
            assert int.from_bytes(image.read(4), "little") >= 12000
            image.seek(version_at + 4)
            image.write((11020).to_bytes(4, "little"))
    result = container.run(command(allocating.prints_what_comes, 1, "cuMemAllocAsync", 0))
    assert result.stdout.split() == ["801"]
    assert "before CUDA 11.3" in result.stderr
