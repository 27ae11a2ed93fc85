"""Tests that pools are charged for the memory that they hold on the GPU, not for what they have handed out.

Pools of simulated GPUs grow in steps of 32 MiB, and shrink when the program waits for the GPU.
"""

from __future__ import annotations

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container, finishing
from tests.interposer.launching import line
from tests.interposer.programs import allocating, pools
from tests.interposer.reference_arbiter import Misbehaviour
from tests.programs import command

LIMIT = 256 * MIB


def test_pool_is_charged_in_the_steps_in_which_it_grows(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(pools.takes_pieces)
    assert arbiter.reclaims == 0


def test_memory_cached_by_a_pool_stays_charged_until_trimmed(container: Container, make_arbiter: ArbiterMaker) -> None:
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
def test_pool_is_refunded_when_its_program_waits(container: Container, make_arbiter: ArbiterMaker, symbol: str) -> None:
    arbiter = make_arbiter(LIMIT)
    with finishing(container.start(command(pools.frees_and_waits, symbol))) as process:
        assert process.stdin is not None
        assert line(process) == "freed"
        assert sum(arbiter.charged()) == 224 * MIB
        process.stdin.write("\n")
        process.stdin.flush()
        assert line(process) == "waited", process.communicate(timeout=10)
        assert sum(arbiter.charged()) == 0


@pytest.mark.parametrize("symbol", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
@pytest.mark.parametrize("kind", [pools.PINNED, pools.MANAGED], ids=["pinned", "managed"])
def test_default_pool_of_host_memory_is_limited(
    container: Container, make_arbiter: ArbiterMaker, symbol: str, kind: int
) -> None:
    arbiter = make_arbiter(LIMIT)
    with finishing(container.start(command(pools.fills_a_pool_of_a_place, symbol, kind))) as process:
        assert line(process) == "filled", process.communicate(timeout=60)
        assert sum(arbiter.charged()) == LIMIT
        output, errors = process.communicate("\n", timeout=60)
        assert (output, process.returncode) == ("freed\n", 0), errors
    assert sum(arbiter.charged()) == 0


def test_pool_of_a_gpu_outside_the_share_is_refused(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.takes_from_the_pool_of_another_gpu)


def test_pool_is_trimmed_before_an_allocation_is_refused(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.gives_way)


def test_full_pool_reuses_memory_freed_in_the_same_stream(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.frees_and_takes_in_a_stream)


def test_full_pool_waits_for_memory_freed_in_another_stream(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.frees_and_takes_in_another_stream)


def test_pool_that_grew_beyond_the_limit_is_undone(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.takes_more_than_fits)


def test_threads_allocate_while_another_one_waits_for_the_arbiter(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    arbiter = make_arbiter(LIMIT, behaviour=Misbehaviour(reclaim_seconds=1))
    taken = int(container.program(pools.takes_while_another_thread_is_refused))
    assert arbiter.reclaims == 2
    assert taken > 20, "it could not allocate during those two seconds"


def test_destroyed_pool_is_charged_until_its_last_block_is_freed(
    container: Container, make_arbiter: ArbiterMaker
) -> None:
    make_arbiter(LIMIT)
    container.program(pools.destroys)


def test_failed_free_does_not_change_a_pool(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    container.program(pools.frees_wrongly)


@pytest.mark.slow
def test_pool_shared_by_threads_is_charged_exactly(container: Container, make_arbiter: ArbiterMaker) -> None:
    arbiter = make_arbiter(LIMIT)
    container.program(pools.shares_with_threads)
    assert arbiter.charged() == []


@pytest.mark.slow
def test_killed_process_leaves_no_pool_behind(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(LIMIT)
    for _ in range(3):
        with finishing(container.start(command(pools.keeps_until_it_is_killed))) as process:
            assert line(process) == "kept"
        container.program(pools.takes_all)


def test_pool_memory_is_refused_if_the_driver_cannot_report_its_size(
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
