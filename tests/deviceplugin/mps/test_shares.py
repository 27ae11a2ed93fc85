"""Shares with the isolation mps: the real library and arbiter, and a daemon as the agent runs it, on simulated GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deviceplugin.host import kernel_process
from deviceplugin.mps import shares, steps
from deviceplugin.mps.daemons import Daemons, IsUsed
from deviceplugin.mps.shares import ClientFiles, MpsShares
from gpushare.allocation import Allocation, GivenShare, Isolation, Labels, PodRef
from gpushare.gpunode import Gpu, GpuNode
from gpushare.modes.hardware_gpu import HardwareGpu
from gpushare.refusal import Refusal
from tests.deviceplugin import arbiter_node, simulated, waiting
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.mps import keepers
from tests.deviceplugin.mps.programs import clients
from tests.interposer import container
from tests.programs import Parameters, command
from tests.simgpu.programs import mps as obedient

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
        self.seconds = 0.0
        self.next_agent()
        for name, percent in (("small", 25), ("large", 50)):
            self.node.add_pod(
                name, GivenShare(("main",), (self.uuid,), percent, percent, LIMIT), isolation=Isolation.MPS
            )

    def next_agent(self) -> None:
        self.daemons = Daemons(root=self.root, program=PROGRAM, set_exclusive=self._exclusive)
        self.shares = MpsShares(
            self.daemons,
            node=self.gpunode,
            fractional=lambda: frozenset(simulated.uuids(self.gpus)),
            clock=lambda: self.seconds,
        )

    async def ready(self) -> ClientFiles | Refusal:
        return await self.shares.ready(self.uuid, "a")

    def gpunode(self) -> GpuNode:
        gpus = tuple(Gpu(uuid, index, "L4", 24 << 30) for index, uuid in enumerate(simulated.uuids(self.gpus)))
        return dataclasses.replace(self.node.gpunode(), gpus=gpus)

    def a_minute_later(self) -> None:
        """Let all containers have started that asked for a daemon."""
        self.seconds += shares.STARTING_SECONDS

    async def _exclusive(self, uuid: str, exclusive: bool) -> None:
        self.compute_modes[uuid] = exclusive

    def box(self, pipe: Path | None = None) -> container.Container:
        """Return a container as the share's CDI description makes it."""
        there = self.shares.files(self.uuid).clients if pipe is None else pipe
        return container.Container(self.node.socket.parent, self.gpus, mps_pipe=there)

    @contextlib.asynccontextmanager
    async def client(
        self, pod: str, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
    ) -> AsyncIterator[subprocess.Popen[str]]:
        environment = {"TEST_POD": pod, "TEST_CONTAINER": "main"}
        with container.finishing(self.box().start(command(function, *values, **named), environment)) as process:
            yield process

    async def has_processes(self, uuid: str) -> bool:
        return any(grant.uuid == uuid for use in self.node.groups.uses() for grant in use.tenant.grants)

    async def servers(self) -> frozenset[int]:
        return steps.pids(await self.daemons.send(self.uuid, "get_server_list"))

    async def output(self, box: container.Container) -> tuple[str, str]:
        """Return the results of a program that starts CUDA, and its messages."""
        environment = {"TEST_POD": "small", "TEST_CONTAINER": "main"}
        with container.finishing(box.start(command(clients.starts_or_not), environment)) as process:
            return await asyncio.to_thread(process.communicate, timeout=60)


def identity(pid: int) -> tuple[int, int]:
    found = kernel_process.with_start(pid)
    assert found is not None
    return found


async def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


async def does(process: subprocess.Popen[str], line: str) -> str:
    """Have a client of `obedient.obeys` do this, and return its answer."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return await says(process)


async def runs(process: subprocess.Popen[str]) -> bool:
    """Whether a kernel of 1 ms ends; on a server that hangs it never does."""
    assert await does(process, "launch k_1ms") == "0"
    for _ in range(500):
        if await does(process, "query") == "0":
            return True
    return False


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
        made.a_minute_later()
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
    assert await world.ready() == ClientFiles(files)
    (small, large), world.node.allocations = world.node.allocations, world.node.allocations[:1]
    await world.shares.step()
    assert files.pid_file.exists()
    world.node.allocations.clear()
    world.a_minute_later()
    await world.shares.step()
    assert not files.pid_file.exists()
    world.node.allocations += [small, large]
    assert await world.ready() == ClientFiles(files), "a container that starts before the next step starts it"
    assert files.pid_file.exists()


async def test_a_daemon_with_clients_outlives_a_lost_ledger(world: World) -> None:
    async with world.client("small", clients.allocates, 48) as client:
        assert await says(client) == "0"
        pid = world.shares.files(world.uuid).pid_file.read_text()
        lost, world.node.allocations = world.node.allocations, []
        world.a_minute_later()
        await world.shares.step()
        await world.daemons.detach()
        world.next_agent()
        await world.shares.step()
        assert world.shares.files(world.uuid).pid_file.read_text() == pid
        goes_on(client)
        assert await says(client) == "ran"
        world.node.allocations = lost


async def test_a_daemon_that_a_container_has_asked_for_is_not_stopped(world: World) -> None:
    """The other GPU's daemon takes its time to stop, and meanwhile a container starts with its share."""
    files = world.shares.files(world.uuid)
    world.node.allocations.clear()
    world.a_minute_later()
    assert await world.ready() == ClientFiles(files)
    await world.shares.step()
    assert files.pid_file.exists(), "this agent's copy of the ledger lags behind"

    stop = world.daemons.stop

    async def delayed(name: str, *, for_shares: bool, is_used: IsUsed) -> None:
        assert await world.ready() == ClientFiles(files)
        await stop(name, for_shares=for_shares, is_used=is_used)

    world.a_minute_later()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.daemons, "stop", delayed)
        await world.shares.step()
    assert files.pid_file.exists()


CONTROL = """#!/bin/sh
read -r command
echo "$command" >> "$CUDA_MPS_LOG_DIRECTORY/commands"
case "$command" in
get_server_list) echo 70 ;;
"get_client_list 70") printf '7\\n8\\n' ;;
esac
"""


@pytest.fixture
async def scripted(tmp_path: Path, short_path: Path) -> AsyncIterator[tuple[MpsShares, Path]]:
    """A running daemon with two clients, and the directory of its log."""
    program = tmp_path / "control"
    program.write_text(CONTROL)
    program.chmod(0o755)

    async def exclusive(uuid: str, exclusive: bool) -> None:
        raise AssertionError(uuid, exclusive)

    socket = short_path / "keeper.sock"
    daemons = Daemons(root=tmp_path / "mps", program=socket, set_exclusive=exclusive)
    share = GivenShare(("main",), ("GPU-1",), 50, 50, LIMIT)
    entry = Allocation("a", PodRef("ml", "trainer"), (share,), labels=Labels(isolation=Isolation.MPS))
    node = GpuNode("node-a", (Gpu("GPU-1", 0, "L4", 24 << 30),), allocations=(entry,))
    made = MpsShares(daemons, node=lambda: node, fractional=lambda: frozenset({"GPU-1"}), clock=lambda: 0.0)
    async with keepers.running(socket, program):
        await made.step()
        yield made, made.files("GPU-1").log
        await daemons.stop("GPU-1", for_shares=True)
    assert not made.can_share(HardwareGpu("GPU-2", 1), (8, 0)), "without a keeper, no agent could be replaced"


async def test_a_client_is_terminated_by_its_daemon_and_another_process_with_its_pid_is_not(world: World) -> None:
    async with (
        world.client("small", clients.allocates, 48) as first,
        world.client("large", clients.allocates, 48) as second,
    ):
        assert [await says(first), await says(second)] == ["0", "0"]
        assert await world.shares.clients(world.uuid) == {
            server: {first.pid, second.pid} for server in await world.servers()
        }
        pid, start_ticks = identity(first.pid)
        await world.shares.terminate(world.uuid, identity(os.getpid()))
        await world.shares.terminate(world.uuid, (second.pid, start_ticks - 1))
        await world.shares.terminate(world.uuid, (pid, start_ticks))
        goes_on(first)
        goes_on(second)
        assert [await says(first), await says(second)] == ["", "ran"]


async def test_a_container_gets_a_new_server_once_all_clients_of_one_that_hangs_have_ended(world: World) -> None:
    async with world.client("small", obedient.obeys, 0) as killed, world.client("large", obedient.obeys, 0) as other:
        assert [await says(killed), await says(other)] == ["0 0", "0 0"]
        assert await does(killed, "launch k_3600000ms") == "0"
        killed.kill()
        killed.wait()
        await world.shares.ready(world.uuid, "a", has_processes=world.has_processes)
        assert not await runs(other)
    await waiting.until(lambda: not list(world.node.groups.uses()))
    await world.shares.ready(world.uuid, "a", has_processes=world.has_processes)
    async with world.client("small", obedient.obeys, 0) as later:
        assert await says(later) == "0 0"
        assert await runs(later)


async def test_a_server_stays_for_a_process_that_is_no_client_yet(world: World) -> None:
    await world.daemons.send(world.uuid, "start_server -uid 0")
    servers = await world.servers()

    async def starts(uuid: str) -> bool:
        return uuid == world.uuid

    await world.shares.ready(world.uuid, "a", has_processes=starts)
    assert await world.servers() == servers
    await world.shares.ready(world.uuid, "a", has_processes=world.has_processes)
    assert await world.servers() != servers


async def test_a_gpu_whose_servers_fail_again_and_again_takes_no_new_share(scripted: tuple[MpsShares, Path]) -> None:
    mps, log = scripted
    gpu = HardwareGpu("GPU-1", 0)
    assert mps.can_share(gpu, (7, 0))
    assert not mps.can_share(gpu, (6, 1))
    assert not mps.can_share(dataclasses.replace(gpu, mig_enabled=True), (8, 0))
    with (log / "control.log").open("a") as file:
        file.write("Server 70 exited with status 1\n" * 3)
    await mps.step()
    assert mps.problems() == {"GPU-1": "its servers failed 3 times within 60 s, with all their clients"}
    assert not mps.can_share(gpu, (7, 0))
    assert isinstance(await mps.ready("GPU-1", "a"), Refusal)


async def test_a_share_without_isolation_is_counted_and_not_limited(world: World) -> None:
    world.node.allocations.clear()
    world.node.pods.clear()
    share = GivenShare(("main",), (world.uuid,), 25, 25, LIMIT)
    world.node.add_pod("small", share, isolation=Isolation.NONE)
    async with world.client("small", clients.allocates, 100) as client:
        assert await says(client) == "0"
        await waiting.until(lambda: (world.node.used("small") or (0,))[0] >= 100 * MIB)
        goes_on(client)
        assert await says(client) == "ran"


async def test_a_start_is_refused_while_there_is_no_daemon(world: World) -> None:
    other = simulated.uuids(world.gpus)[1]
    files = world.daemons.files(other)
    files.log.parent.mkdir(parents=True)
    files.log.write_text("in the way")
    refusal = await world.shares.ready(other, "a")
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
