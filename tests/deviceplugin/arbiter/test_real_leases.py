"""The real library and arbiter on a simulated GPU: shares measured by completed work, and failures that break no
program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import simulated
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.interposer import container

pytestmark = pytest.mark.slow

WINDOWS = 3
AS_PID_ONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")  # as the first process of a container has
SOURCE = simulated.ROOT / "bench" / "launches" / "load.c"


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that launches in one of several ways, and prints how much it got done."""
    simulated.build()
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)
    program = tmp_path_factory.mktemp("load") / "load"
    driver = [f"-L{simulated.BUILD}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["gcc", "-std=c11", "-O2", "-o", program, SOURCE, *driver], check=True, timeout=60)
    return program


class Programs:
    """Programs in containers of a node, each in its own pod."""

    def __init__(self, node: ArbiterNode, gpus: Path, load: Path) -> None:
        self._node = node
        self._box = container.Container(node.socket.parent, gpus)
        self._uuid = simulated.uuids(gpus)[0]
        self._load = load
        self.pods: list[str] = []

    @contextlib.asynccontextmanager
    async def ready(
        self, request: int, limit: int, mode: str = "async", kernel_us: int = 1000, *, within: Sequence[str] = ()
    ) -> AsyncIterator[subprocess.Popen[str]]:
        """Start a program that waits for its signal to begin. `within`: a command that wraps it."""
        pod = f"pod{len(self.pods) + 1}"
        self.pods.append(pod)
        self._node.add_pod(pod, GivenShare(("main",), (self._uuid,), request, limit, 1 << 28))
        environment = {"TEST_POD": pod, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}
        process = self._box.start([*within, self._load, mode, str(kernel_us)], environment)
        with container.finishing(process):
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
            yield process


@pytest.fixture
def programs(node: ArbiterNode, gpus: Path, load: Path) -> Programs:
    return Programs(node, gpus, load)


def begin(process: subprocess.Popen[str], *, after: float = 0.7, seconds: float = 1.5) -> None:
    """Let the program begin now, and count from `after` seconds on."""
    assert process.stdin is not None
    now = int(time.monotonic() * 1000)
    process.stdin.write(f"{now} {now + int(after * 1000)} {now + int((after + seconds) * 1000)}\n")
    process.stdin.flush()


async def percent(process: subprocess.Popen[str], kernel_us: int = 1000) -> float:
    """Return the program's part of the GPU's time."""
    output, errors = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 0, errors
    launches, milliseconds, *_ = output.split()
    return int(launches) * kernel_us / 10 / float(milliseconds)


Window = Callable[[], Awaitable[tuple[float, float]]]


async def split(window: Window, first_percent: tuple[float, float], together_percent: float) -> None:
    """Whether the first program got this part of what both got, and both together this part of the GPU, in any window.

    Other work on this machine takes a window now and then; a share that takes too much does so in all of them.
    """
    for _ in range(WINDOWS):
        first, second = await window()
        part = 100 * first / (first + second)
        if first_percent[0] < part < first_percent[1] and first + second > together_percent:
            return
    pytest.fail(f"the last of {WINDOWS} windows: {part:.1f} % of {first + second:.1f} %")


async def reaches(window: Callable[[], Awaitable[float]], least_percent: float) -> None:
    """Whether a program reaches this part of the GPU in any window: other work on this machine takes only some
    windows.
    """
    had = [await window()]
    while had[-1] <= least_percent and len(had) < WINDOWS:
        had.append(await window())
    assert had[-1] > least_percent, had


@pytest.mark.parametrize(("mode", "kernel_us"), [("async", 1000), ("sync", 5000), ("async", 50), ("graph", 1000)])
async def test_two_shares_split_the_gpu_as_they_asked(programs: Programs, mode: str, kernel_us: int) -> None:
    async def window() -> tuple[float, float]:
        async with programs.ready(30, 100, mode, kernel_us) as first, programs.ready(70, 100, mode, kernel_us) as two:
            begin(first)
            begin(two)
            return await asyncio.gather(percent(first, kernel_us), percent(two, kernel_us))

    # Loose bounds, for a busy machine: bench/interposer.py has exact figures.
    await split(window, (24, 36), 60)


async def keeps(window: Callable[[], Awaitable[float]], least_percent: float, most_percent: float) -> None:
    """Whether a program gets about this part: less on a busy machine, and more if a turn extends into the window."""
    had = [await window()]
    while not least_percent < had[-1] < most_percent and len(had) < WINDOWS:
        had.append(await window())
    assert least_percent < had[-1] < most_percent, had


async def test_a_limit_is_kept_when_alone(programs: Programs) -> None:
    async def window() -> float:
        async with programs.ready(10, 30) as program:
            begin(program)
            return await percent(program)

    await keeps(window, 10, 34)


async def test_an_idle_neighbour_leaves_all_of_the_gpu(programs: Programs) -> None:
    async def window() -> float:
        # The queued kernels last longer than a wait for a CPU.
        async with programs.ready(30, 100, kernel_us=20_000) as program, programs.ready(70, 100):
            begin(program)
            return await percent(program, 20_000)

    await reaches(window, 90)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_killed_or_stopped_with_the_lease_delays_no_other(
    programs: Programs, how: signal.Signals
) -> None:
    async def window() -> float:
        async with programs.ready(50, 100) as holder, programs.ready(50, 100) as two:
            begin(holder, seconds=60)
            begin(two, after=0.6, seconds=1.0)
            await asyncio.sleep(0.3)
            os.kill(holder.pid, how)
            return await percent(two)

    await reaches(window, 80)


async def test_programs_continue_through_a_restart_of_the_agent_and_share_after_it(
    programs: Programs, node: ArbiterNode
) -> None:
    async def window() -> tuple[float, float]:
        async with programs.ready(30, 100) as first, programs.ready(70, 100) as two:
            begin(first, after=3.0)
            begin(two, after=3.0)
            await asyncio.sleep(0.3)
            await node.stop()
            await asyncio.sleep(0.3)
            await node.start()
            shares = await asyncio.gather(percent(first), percent(two))
            assert {usage.tenant.pod for usage in node.server.leases.usage()} <= set(programs.pods)
            return shares

    await split(window, (20, 40), 60)


@pytest.mark.parametrize(("count", "least_percent"), [(2, 38), (10, 5)])
async def test_without_an_agent_shares_of_equal_pids_launch_in_turn(
    programs: Programs, node: ArbiterNode, count: int, least_percent: float
) -> None:
    async def window() -> list[float]:
        async with contextlib.AsyncExitStack() as stack:
            ready = [programs.ready(100 // count, 100, within=AS_PID_ONE) for _ in range(count)]
            running = [await stack.enter_async_context(context) for context in ready]
            for program in running:
                begin(program, after=1.0)
            await asyncio.sleep(0.3)
            await node.stop()
            shares = await asyncio.gather(*map(percent, running))
        await node.start()
        return shares

    best = [0.0] * count  # on a busy machine, one of ten misses its turns in every window
    for _ in range(WINDOWS):
        best = list(map(max, best, await window()))
        if min(best) > least_percent:
            return
    pytest.fail(f"the best of {WINDOWS} windows: {best}")


async def test_a_paused_arbiter_stops_no_holder(programs: Programs, node: ArbiterNode) -> None:
    async def window() -> float:
        node.server.leases.settled_ns = 0  # it runs long enough to know which share is alone
        async with programs.ready(50, 100) as program:
            begin(program, after=0.5, seconds=1)
            await asyncio.sleep(0.3)
            await node.stop()
            had = await percent(program)
        await node.start()
        return had

    await reaches(window, 80)


async def test_a_new_limit_applies_to_a_running_program(programs: Programs, node: ArbiterNode) -> None:
    node.server.leases.settled_ns = 0

    async def window() -> float:
        # A program that waits for its kernels: work that another one queued while alone would have to run out first.
        # The kernels are long, so that waiting for a CPU after each costs little.
        async with programs.ready(10, 100, "sync", 5000) as program:
            begin(program)
            await asyncio.sleep(0.3)
            node.change(programs.pods[-1], limit_percent=30)
            return await percent(program, 5000)

    await keeps(window, 10, 34)


async def test_swapped_requests_apply_to_running_programs(programs: Programs, node: ArbiterNode) -> None:
    async def window() -> tuple[float, float]:
        async with programs.ready(30, 100) as first, programs.ready(70, 100) as two:
            begin(first)
            begin(two)
            await asyncio.sleep(0.3)
            node.change(programs.pods[-2], request_percent=70)
            node.change(programs.pods[-1], request_percent=30)
            return await asyncio.gather(percent(first), percent(two))

    await split(window, (64, 76), 60)
