"""Compute shares on the GPU, by completed work."""

from __future__ import annotations

import asyncio
import time

import pytest

from bench.gpu.modes import NATIVE, OURS
from bench.gpu.tenants import BUILT, Gpu
from bench.launches.node import Tenant
from tests.gpu.conftest import Play

SECONDS = 3.0
WARM_MS = 1000
POINTS = 4.0  # bench.gpu measures precisely; here only an ineffective limit must fail

WORKLOADS = {"async": ("async", 1000), "sync": ("sync", 1000), "graph": ("graph", 1000)}


async def alone(gpu: Gpu, mode: str, kernel_us: int) -> float:
    (done,) = await gpu.compete(NATIVE, [Tenant(100, 100, mode, kernel_us)], 1.0, WARM_MS)
    return done.percent


@pytest.mark.parametrize(("mode", "kernel_us"), WORKLOADS.values(), ids=WORKLOADS)
def test_two_tenants_get_their_requests(play: Play, mode: str, kernel_us: int) -> None:
    async def story(gpu: Gpu) -> None:
        whole = await alone(gpu, mode, kernel_us)
        tenants = [Tenant(30, 100, mode, kernel_us), Tenant(70, 100, mode, kernel_us)]
        small, large = (result.percent for result in await gpu.compete(OURS, tenants, SECONDS, WARM_MS))
        assert 100 * small / (small + large) == pytest.approx(30, abs=POINTS)
        assert small + large > 0.9 * whole

    play(story)


@pytest.mark.parametrize(("mode", "kernel_us"), WORKLOADS.values(), ids=WORKLOADS)
def test_a_limit_holds_for_a_tenant_alone(play: Play, mode: str, kernel_us: int) -> None:
    async def story(gpu: Gpu) -> None:
        whole = await alone(gpu, mode, kernel_us)
        (done,) = await gpu.compete(OURS, [Tenant(10, 30, mode, kernel_us)], SECONDS, WARM_MS)
        assert 100 * done.percent / whole == pytest.approx(30, abs=POINTS)

    play(story)


def test_a_tenant_alone_without_a_limit_loses_no_speed(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        whole = await alone(gpu, "async", 1000)
        (done,) = await gpu.compete(OURS, [Tenant(30, 100, "async", 1000)], SECONDS, WARM_MS)
        assert done.percent > 0.95 * whole

    play(story)


def test_killing_a_process_with_the_lease_blocks_no_other(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        load = [BUILT / "load", "async", "1000"]
        async with (
            gpu.holding(load, "ready", gpu.give(request=50)) as (holder, _),
            gpu.holding(load, "ready", gpu.give(request=50)) as (waiting, _),
        ):
            now_ms = int(time.monotonic() * 1000)
            assert holder.stdin is not None
            holder.stdin.write(f"{now_ms} {now_ms} {now_ms + 60_000}\n")
            holder.stdin.flush()
            await asyncio.sleep(0.5)  # it holds the lease and has queued work
            moments = f"{now_ms} {now_ms} {now_ms + 1500}\n"
            answer = asyncio.create_task(asyncio.to_thread(waiting.communicate, moments, timeout=30))
            holder.kill()
            launches, _, first_ms = (await answer)[0].split()
            assert int(launches) > 100
            assert float(first_ms) < 1000

    play(story)
