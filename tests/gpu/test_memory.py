"""Memory limits on the GPU: exact to the byte for every allocator, visible to programs, released after SIGKILL."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bench.gpu import memory
from bench.gpu.modes import NATIVE, OURS
from bench.gpu.tenants import BUILT, Gpu, ProgramError
from tests.gpu.conftest import Play
from tests.interposer import container

LIMIT = (4 << 30) + 4096 * 7
# Memory that the driver may use for a context in addition to the program's, and that is charged to no process.
MAX_OF_A_CONTEXT = 2 << 30


async def fill(gpu: Gpu, kind: str, share: dict[str, str], size: int = LIMIT) -> int:
    return int((await gpu.run(OURS, [BUILT / "fill", kind, str(size)], share)).stdout.split()[1])


@pytest.mark.parametrize(("kind", "unit"), memory.KINDS.items(), ids=memory.KINDS)
def test_a_share_can_be_filled_to_the_byte_and_no_further(play: Play, kind: str, unit: int) -> None:
    async def story(gpu: Gpu) -> None:
        try:
            filled = await fill(gpu, kind, gpu.give(memory_bytes=LIMIT))
        except ProgramError as error:
            assert f"{kind}: 801" in str(error), "what is not counted must be refused"
            return
        assert LIMIT - MAX_OF_A_CONTEXT < filled <= LIMIT // unit * unit

    play(story)


def test_four_processes_together_can_fill_the_share_and_no_further(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        filled = (await memory.fill_together(gpu, OURS, "plain", LIMIT, 4))[0]
        assert filled is not None
        assert filled <= LIMIT

    play(story)


def test_a_program_sees_the_share_by_cuda_and_by_nvml(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        command = [container.PROBE, "--nvml", "--allocate", "1MiB"]
        shown = (await gpu.run(OURS, command, gpu.give(memory_bytes=LIMIT))).stdout
        assert shown.count(f" total {LIMIT} ") == 2, shown
        bare = (await gpu.run(NATIVE, command)).stdout
        assert f" total {LIMIT} " not in bare

    play(story)


def test_the_memory_of_a_context_is_known_and_bounded(
    play: Play, record_property: Callable[[str, object], None]
) -> None:
    async def story(gpu: Gpu) -> None:
        before = gpu.machine.used_bytes()
        async with gpu.holding([BUILT / "load", "idle", "1000"], "ready", gpu.give(memory_bytes=LIMIT)):
            taken = gpu.machine.used_bytes() - before
        record_property("context_mib", taken >> 20)
        assert 0 <= taken < MAX_OF_A_CONTEXT

    play(story)


def test_a_killed_process_releases_its_memory(play: Play) -> None:
    async def story(gpu: Gpu) -> None:
        share = gpu.give(memory_bytes=LIMIT)
        async with gpu.holding([BUILT / "fill", "plain", str(LIMIT)], "filled", share) as (holder, line):
            held = int(line.split()[1])
            assert held > LIMIT // 2
            assert await fill(gpu, "plain", share) < LIMIT // 100
            holder.kill()
            holder.wait(timeout=20)
            deadline = time.monotonic() + 5
            while await fill(gpu, "plain", share) < held:
                assert time.monotonic() < deadline

    play(story)
