"""Shares with the isolation mps: the real library and arbiter, and a daemon as the agent runs it, on simulated GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deviceplugin.mps import steps
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.shares import MpsShares
from gpushare.allocation import GivenShare, Isolation
from gpushare.refusal import Refusal
from tests.deviceplugin import arbiter_node, simulated
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.mps.programs import clients
from tests.interposer import container
from tests.programs import Parameters, command

PROGRAM = simulated.BUILD / "nvidia-cuda-mps-control"
MIB = 1 << 20
LIMIT = 64 * MIB


@dataclasses.dataclass
class World:
    """A node with an arbiter and MPS daemons, and the pods `small` and `large` with 25 and 50 percent of its GPU."""

    node: ArbiterNode
    gpus: Path
    root: Path

    def __post_init__(self) -> None:
        self.uuid = simulated.uuids(self.gpus)[0]
        self.compute_modes: dict[str, bool] = {}
        self.next_agent()
        for name, percent in (("small", 25), ("large", 50)):
            self.node.add_pod(
                name, GivenShare(("main",), (self.uuid,), percent, percent, LIMIT), isolation=Isolation.MPS
            )

    def next_agent(self) -> None:
        self.daemons = Daemons(root=self.root, program=PROGRAM, set_exclusive=self._exclusive)
        self.shares = MpsShares(
            self.daemons, node=self.node.gpunode, fractional=lambda: frozenset(simulated.uuids(self.gpus))
        )

    async def _exclusive(self, uuid: str, exclusive: bool) -> None:
        self.compute_modes[uuid] = exclusive

    def box(self, pipe: Path | None = None) -> container.Container:
        """Return a container as the share's CDI description makes it."""
        there = self.shares.files(self.uuid).pipe if pipe is None else pipe
        return container.Container(self.node.socket.parent, self.gpus, mps_pipe=there)

    @contextlib.asynccontextmanager
    async def client(
        self, pod: str, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
    ) -> AsyncIterator[subprocess.Popen[str]]:
        environment = {"TEST_POD": pod, "TEST_CONTAINER": "main"}
        with container.finishing(self.box().start(command(function, *values, **named), environment)) as process:
            yield process

    async def output(self, box: container.Container) -> tuple[str, str]:
        """Return the results of a program that starts CUDA, and its messages."""
        environment = {"TEST_POD": "small", "TEST_CONTAINER": "main"}
        with container.finishing(box.start(command(clients.starts_or_not), environment)) as process:
            return await asyncio.to_thread(process.communicate, timeout=60)


async def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


def goes_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture(scope="session")
def _library() -> None:
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


@pytest.fixture
async def world(_library: None, gpus: Path, short_path: Path) -> AsyncIterator[World]:
    async with arbiter_node.opened(short_path) as node:
        made = World(node, gpus, short_path / "mps")
        await made.shares.step()
        yield made
        node.allocations.clear()
        await made.shares.step()
        assert not list(made.root.glob("*/pipe/nvidia-cuda-mps-control.pid")), "no daemon is left over"


async def test_shares_run_side_by_side_within_their_percentages_whatever_their_environment(world: World) -> None:
    async with (
        world.client("small", clients.runs_a_kernel, "k_50ms") as small,
        world.client("large", clients.runs_a_kernel, "k_100ms") as large,
    ):
        assert [await says(small), await says(large)] == ["ready", "ready"]
        goes_on(small)
        goes_on(large)
        # Each ends by the GPU's clock as if it were alone with its part: one after the other would take longer.
        assert [float(await says(small)), float(await says(large))] == pytest.approx([200, 200], abs=25)
    assert world.compute_modes == {}, "the compute mode stays as it is"


async def test_the_memory_limit_holds_for_all_processes_of_a_share(world: World) -> None:
    async with (
        world.client("small", clients.allocates, 48) as first,
        world.client("large", clients.allocates, 60) as other,
    ):
        assert await says(first) == "0"
        async with world.client("small", clients.allocates, 32) as second:
            assert await says(second) == "2"
        assert await says(other) == "0"


async def test_a_process_without_a_daemon_starts_nothing(world: World, tmp_path: Path) -> None:
    printed, errors = await world.output(world.box(tmp_path))
    assert printed.split() == ["805", "802", "802", "802", "802"]
    (line,) = container.lines_of_the_library(errors)
    assert "its share's isolation is mps, and it is no client of the MPS daemon" in line


async def test_a_process_of_another_isolation_needs_no_daemon(world: World, tmp_path: Path) -> None:
    world.node.allocations.clear()
    world.node.pods.clear()
    world.node.add_pod("small", GivenShare(("main",), (world.uuid,), 25, 100, LIMIT))
    printed, errors = await world.output(world.box(tmp_path))
    assert printed.split()[:3] == ["0", "0", "201"], printed + errors


async def test_clients_continue_through_a_restart_of_the_agent(world: World) -> None:
    async with world.client("small", clients.allocates, 48) as client:
        assert await says(client) == "0"
        pid = world.shares.files(world.uuid).pid_file.read_text()
        await world.daemons.detach()
        await world.node.stop()
        await world.node.start()
        world.next_agent()
        await world.shares.step()
        assert world.shares.files(world.uuid).pid_file.read_text() == pid
        goes_on(client)
        assert await says(client) == "ran"


async def test_the_daemon_lives_from_the_first_share_to_the_last(world: World) -> None:
    files = world.shares.files(world.uuid)
    assert await world.shares.ready(world.uuid) == files
    (small, large), world.node.allocations = world.node.allocations, world.node.allocations[:1]
    await world.shares.step()
    assert files.pid_file.exists()
    world.node.allocations.clear()
    await world.shares.step()
    assert not files.pid_file.exists()
    world.node.allocations += [small, large]
    assert await world.shares.ready(world.uuid) == files, "a container that starts before the next step starts it"
    assert files.pid_file.exists()


async def test_a_start_is_refused_while_there_is_no_daemon(world: World) -> None:
    other = simulated.uuids(world.gpus)[1]
    files = world.daemons.files(other)
    files.pipe.parent.mkdir(parents=True)
    files.pipe.write_text("in the way")
    refusal = await world.shares.ready(other)
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith(f"the MPS daemon of {other} takes no client now: ")
    await world.daemons.detach()


def test_a_daemon_for_shares_leaves_compute_mode_and_limits_alone() -> None:
    spec, files = steps.for_shares("GPU-1"), steps.DaemonFiles(Path("/mps"), "GPU-1")
    made = (*steps.start(spec, files), *steps.stop(spec, files))
    assert not [step for step in made if isinstance(step, steps.SetComputeMode)]
    assert [step.lines for step in made if isinstance(step, steps.Command)] == [
        ("set_default_active_thread_percentage 100",),
        ("quit",),
    ]
    assert [step.multi_user for step in made if isinstance(step, steps.RunDaemon)] == [True]
