"""PyTorch of the machine's own in a share: it sees the share, meets its end as the exception it knows, and goes on."""

from __future__ import annotations

import pytest

from bench.gpu import frameworks
from bench.gpu.modes import NATIVE, OURS
from bench.gpu.tenants import Gpu
from tests.gpu.conftest import Play

LIMIT = 8 << 30


@pytest.fixture
def _torch(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        if not await frameworks.present(gpu):
            pytest.skip("this machine's Python has no PyTorch that sees the GPU")

    play(story)


@pytest.mark.usefixtures("_torch")
def test_it_sees_the_share_and_is_refused_what_is_beyond(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        report = await frameworks.memory(gpu, LIMIT)
        assert report["total"] == LIMIT
        assert report["raised"] == ["OutOfMemoryError"] * 2
        first, second = report["filled"]  # type: ignore[misc]
        assert LIMIT // 2 < first <= LIMIT
        assert second == first, "what it freed is there again"

    play(story)


@pytest.mark.usefixtures("_torch")
def test_two_trainings_share_as_they_asked(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        small, large = await frameworks.rates(gpu, OURS, [("train", 30), ("train", 70)], 4.0)
        assert 100 * small / (small + large) == pytest.approx(30, abs=5)

    play(story)


@pytest.mark.usefixtures("_torch")
def test_inference_runs_in_a_share(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        (bare,) = await frameworks.rates(gpu, NATIVE, [("infer", 100)], 2.0)
        (ours,) = await frameworks.rates(gpu, OURS, [("infer", 100)], 2.0)
        assert ours > 0.8 * bare

    play(story)


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize("name", ["matmul", "convolve"])
def test_cublas_and_cudnn_work_in_a_share(play: Play, name: str) -> None:
    async def story(gpu: Gpu) -> None:
        (bare,) = await frameworks.rates(gpu, NATIVE, [(name, 100)], 2.0)
        (ours,) = await frameworks.rates(gpu, OURS, [(name, 100)], 2.0)
        assert ours > 0.8 * bare

    play(story)


@pytest.mark.usefixtures("_torch")
def test_all_of_a_share_is_there_again_after_a_reset_of_the_device(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        filled = (await frameworks.story(gpu, "reset", LIMIT, memory_bytes=LIMIT))["filled"]
        assert LIMIT // 2 < filled[0] <= LIMIT
        assert filled == [filled[0]] * len(filled)

    play(story)


@pytest.mark.usefixtures("_torch")
def test_a_program_ends_while_its_kernels_run(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        assert (await frameworks.story(gpu, "leave"))["queued"]

    play(story)


@pytest.mark.usefixtures("_torch")
def test_collectives_over_all_gpus_are_right(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        report = await frameworks.story(gpu, "collective")
        assert report["right"]
        assert report["sums_per_second"] > 0

    play(story)


@pytest.mark.usefixtures("_torch")
def test_communicators_that_come_and_go_take_nothing_with_them(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        free = (await frameworks.story(gpu, "communicators", 20, memory_bytes=LIMIT))["free"]
        assert free[-1] >= free[1]  # the first one loads what stays

    play(story)
