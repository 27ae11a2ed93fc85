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
        told = await frameworks.memory(gpu, LIMIT)
        assert told["total"] == LIMIT
        assert told["raised"] == ["OutOfMemoryError"] * 2
        first, second = told["filled"]  # type: ignore[misc]
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
