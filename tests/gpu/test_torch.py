"""The machine's PyTorch in a share: it sees the share, gets its usual exception at the limit, and continues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from bench.gpu import frameworks, machine, tenants, workers
from bench.gpu.modes import NATIVE, OURS
from bench.gpu.tenants import Gpu
from tests.gpu.conftest import Play

LIMIT = 8 << 30
WORKLOADS = ("infer", "matmul", "convolve", "attention", "graph")
SECONDS = 1.5

Rates = Mapping[str, tuple[float, float]]


@pytest.fixture(scope="session")
def _torch(which: machine.Machine, loops: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    async def look() -> None:
        directory = tmp_path_factory.mktemp("torch")
        async with tenants.opened(which, directory, loops) as gpu, workers.opened(gpu, (NATIVE, 100)):
            pass

    try:
        asyncio.run(look())
    except tenants.ProgramError as error:
        pytest.skip(f"this machine's Python has no PyTorch that sees the GPU: {workers.in_a_line(error)}")


@pytest.fixture(scope="module")
def rates(_torch: None, which: machine.Machine, loops: int, tmp_path_factory: pytest.TempPathFactory) -> Rates:
    """Return the steps per second of each workload, natively and in a share, from one process each."""

    async def measured() -> Rates:
        found = {}
        directory = tmp_path_factory.mktemp("rates")
        async with (
            tenants.opened(which, directory, loops) as gpu,
            workers.opened(gpu, (NATIVE, 100), (OURS, 100)) as both,
        ):
            for name in WORKLOADS:
                await workers.prepare(both, name)
                native, ours = [(await workers.run([worker], SECONDS))[0].rate for worker in both]
                found[name] = (native, ours)
        return found

    return asyncio.run(measured())


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize("subject", frameworks.ALLOCATORS, ids=lambda subject: subject.label)
def test_pytorch_sees_the_share_and_cannot_exceed_it(play: Play, subject: frameworks.Subject) -> None:
    async def story(gpu: Gpu) -> None:
        seen = await frameworks.filled(gpu, subject, LIMIT)
        assert seen["total"] == LIMIT
        assert [how[0].split(":")[0] for how in seen["raised"]] == ["OutOfMemoryError"] * 2
        first, second = seen["filled"]
        assert LIMIT // 2 < first <= LIMIT
        assert second == first, "what it freed is there again"

    play(story)


@pytest.mark.usefixtures("_torch")
def test_two_trainings_share_the_gpu_by_request(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        async with workers.opened(gpu, (OURS, 30), (OURS, 70)) as pair:
            await workers.prepare(pair, "train")
            small, large = (one.rate for one in await workers.run(pair, 4.0))
        assert 100 * small / (small + large) == pytest.approx(30, abs=5)

    play(story)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_keeps_its_speed_in_a_share(rates: Rates, name: str) -> None:
    native, ours = rates[name]
    assert ours > 0.8 * native


@pytest.mark.usefixtures("_torch")
def test_graphs_are_captured_during_a_training(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        async with workers.opened(gpu, (OURS, 50), (OURS, 50)) as pair:
            await asyncio.gather(pair[0].prepare("train"), pair[1].prepare("capture"))
            captured = (await workers.run(pair, 3.0))[1]
        assert captured.pieces > 0
        assert captured.failures == 0, captured.failure

    play(story)


@pytest.mark.usefixtures("_torch")
def test_a_device_reset_releases_the_whole_share(play: Play) -> None:
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
def test_collectives_over_all_gpus_are_correct(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        report = await frameworks.story(gpu, "collective")
        assert report["right"]
        assert report["sums_per_second"] > 0

    play(story)


@pytest.mark.usefixtures("_torch")
def test_destroyed_communicators_release_their_memory(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        free = (await frameworks.story(gpu, "communicators", 20, memory_bytes=LIMIT))["free"]
        assert free[-1] >= free[1]  # the first run loads modules that stay

    play(story)
