"""MPS daemons, with a small program that takes commands over its pipe as NVIDIA's does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from deviceplugin.mps import daemons, pipe, steps, supervisor
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.supervisor import Control, ControlError
from tests.deviceplugin import simulated, waiting
from tests.deviceplugin.mps.daemon_world import GIB, POD, PROGRAM, SPEC, UUID, World
from tests.deviceplugin.mps.programs import filling, planting
from tests.programs import command


@pytest.fixture
async def world(simulation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(daemons, "FIRST_PAUSE_SECONDS", 0.05)
    made = World(tmp_path / "mps")
    yield made
    await made.daemons.detach()
    for directory in made.root.glob("*/"):
        await made.daemons.stop(directory.name)
    assert not list(made.root.glob("*/pipe/nvidia-cuda-mps-control.pid")), "no daemon is left over"


def is_alive(pid: int) -> bool:
    """Whether the process runs; an ended one may stay a zombie here."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_daemon_runs_with_its_limits_until_it_is_stopped(world: World) -> None:
    await world.daemons.start(SPEC)
    assert world.daemons.problem(UUID) == ""
    assert await world.limits() == [
        "default_active_thread_percentage 25.0",
        "default_device_pinned_mem_limit 0 10240M",
    ]
    assert world.modes == {UUID: True}
    assert (world.root / ".ready").exists()
    assert world.daemons.files(UUID).started.exists()
    pid = world.pid()

    await world.daemons.stop(UUID)
    assert not await world.answers()
    assert world.modes == {UUID: False}
    assert world.daemons.problem(UUID) == "no MPS daemon runs for it"
    assert not world.daemons.files(UUID).started.exists()
    assert not world.daemons.files(UUID).log.exists()
    assert not is_alive(pid)


@pytest.mark.slow
async def test_a_daemon_that_dies_is_restarted_with_its_limits(world: World) -> None:
    await world.daemons.start(SPEC)
    for _ in range(3):
        pid = world.pid()
        os.kill(pid, signal.SIGKILL)
        await world.until(lambda: world.daemons.problem(UUID) != "")
        assert world.daemons.problem(UUID) == "it has ended"
        assert not (world.root / ".ready").exists()
        await world.until(lambda: world.daemons.problem(UUID) == "")
        assert world.pid() != pid
        assert "default_device_pinned_mem_limit 0 10240M" in await world.limits()
        assert (world.root / ".ready").exists()
    assert world.warned == [f"the MPS daemon of {UUID} does not run and is restarted: it has ended"] * 3


async def test_limits_that_a_client_has_changed_are_set_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root in a client's container can send commands. Those of a server are for later clients of it."""
    monkeypatch.setattr(daemons, "PROBE_SECONDS", 0.05)
    await world.daemons.start(steps.for_shares(UUID))
    await world.daemons.send(UUID, "start_server -uid 0")
    (server,) = steps.pids(await world.daemons.send(UUID, "get_server_list"))
    for scope in ("default_active_thread_percentage", f"active_thread_percentage {server}"):
        await world.daemons.send(UUID, f"set_{scope} 1")
        async with asyncio.timeout(20):
            while await world.daemons.send(UUID, f"get_{scope}") != "100.0":
                pass


async def test_a_daemon_is_not_replaced_because_of_servers_that_its_clients_name(
    simulation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root in a client's container can list any number of servers, and have each command for one fail."""
    monkeypatch.setattr(daemons, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(daemons, "PROBE_AGAIN_SECONDS", 0.01)
    program, log = tmp_path / "control", tmp_path / "commands"
    program.write_text(
        f'#!/bin/sh\nread -r line\necho "$line" >> {log}\n'
        'case "$line" in get_server_list) seq 1000 ;; set_active*) exit 1 ;; esac\n'
    )
    program.chmod(0o755)
    made = World(tmp_path / "mps")
    made.daemons = made.made(program)
    await made.daemons.start(steps.for_shares(UUID))
    await waiting.until(lambda: log.read_text().count("get_server_list") > daemons.MAX_SILENCES + 1)
    assert made.daemons.problem(UUID) == ""
    await made.daemons.detach()
    probes = log.read_text().split("get_server_list\n")[1:-1]
    assert {probe.count("set_active_thread_percentage") for probe in probes} == {steps.MAX_SERVERS}


async def test_the_next_agent_takes_a_running_daemon_over(world: World) -> None:
    await world.daemons.start(SPEC)
    pid = world.pid()
    await world.daemons.detach()
    world.daemons = world.made()
    await world.daemons.start(steps.Spec(UUID, (steps.MpsGpu(UUID, 2, 40 * GIB, 8),)))
    assert world.pid() == pid, "its clients live on"
    assert "default_active_thread_percentage 12.0" in await world.limits(), "and new ones have the new limits"


async def test_an_unwanted_daemon_of_a_former_agent_is_stopped(world: World) -> None:
    await world.daemons.start(SPEC)
    await world.daemons.detach()
    world.daemons = world.made()
    await world.daemons.stop(UUID)
    assert not await world.answers()
    assert world.modes == {UUID: False}
    world.modes.clear()
    await world.daemons.stop(UUID)
    assert world.modes == {}, "there is nothing to be undone"


@pytest.mark.parametrize("number", ["", "no number", "0", "-1", "4194305", "99999999999999999999", None])
async def test_a_process_with_the_pid_of_a_dead_daemon_is_not_killed(world: World, number: str | None) -> None:
    """A killed daemon leaves its PID file behind."""
    other = await asyncio.create_subprocess_exec("sleep", "1000")
    files = world.daemons.files(UUID)
    for wanted in (False, True):
        files.pipe.mkdir(parents=True, exist_ok=True)
        files.pid_file.write_text(str(other.pid) if number is None else number)
        if wanted:
            await world.daemons.start(SPEC)
            assert world.pid() != other.pid
        else:
            await world.daemons.stop(UUID)
            assert not files.pid_file.exists()
        assert other.returncode is None
    other.kill()
    assert await other.wait() == -signal.SIGKILL


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_directory(path: Path) -> None:
    (path / "full").mkdir(parents=True)


def put_large(path: Path) -> None:
    path.write_bytes(b"7" * 1000)


@pytest.mark.parametrize("put", [put_fifo, put_endless, put_directory, put_large])
async def test_a_pid_file_replaced_by_a_client_does_not_block_the_next_agent(
    world: World, put: Callable[[Path], None]
) -> None:
    """The clients' containers mount the directory, and their files stay after they end."""
    pid_file = world.daemons.files(UUID).pid_file
    await world.daemons.start(SPEC)
    pid = world.pid()
    for wanted in (True, False):
        await world.daemons.detach()
        pid_file.unlink(missing_ok=True)
        put(pid_file)
        world.daemons = world.made()
        if wanted:
            async with asyncio.timeout(20):
                await world.daemons.start(SPEC)
            assert world.daemons.problem(UUID) == ""
            assert is_alive(pid), "its clients live on"
            os.kill(pid, signal.SIGKILL)
            await world.daemons.detach()
            world.daemons = world.made()
            await world.daemons.start(SPEC)
            assert world.pid() != pid, "whatever is there is out of the way of a new one"
            pid = world.pid()
        else:
            async with asyncio.timeout(20):
                await world.daemons.stop(UUID)
            assert not await world.answers()
            assert list(pid_file.parent.glob(pid_file.name)) == []


async def test_the_pid_of_another_gpus_daemon_is_not_accepted(world: World) -> None:
    other = steps.Spec("GPU-other", (steps.MpsGpu("GPU-other", 3, 24 * GIB, 2),))
    await world.daemons.start(SPEC)
    await world.daemons.start(other)
    assert world.daemons.pids() == {world.pid(), world.pid("GPU-other")}
    await world.daemons.detach()
    world.daemons.files("GPU-other").pid_file.write_text(str(world.pid()))
    with pytest.raises(ProcessLookupError, match="is no MPS daemon with the pipe"):
        pipe.find_process(world.daemons.files("GPU-other"), os.getpid())
    world.daemons = world.made()
    await world.daemons.stop("GPU-other")
    assert is_alive(world.pid())
    assert world.daemons.pids() == {world.pid()}
    assert not await world.answers("GPU-other")
    await world.daemons.start(SPEC)


async def test_no_command_goes_through_a_link_to_another_gpus_daemon(world: World) -> None:
    other = steps.Spec("GPU-other", (steps.MpsGpu("GPU-other", 3, 24 * GIB, 2),))
    await world.daemons.start(SPEC)
    await world.daemons.start(other)
    pid, directory = world.pid("GPU-other"), world.daemons.files("GPU-other").pipe
    (directory / "control").unlink()
    (directory / "control").symlink_to(f"../../{UUID}/pipe/control")
    (directory / "full").mkdir()
    (directory / "full" / "file").touch()
    with pytest.raises(ControlError, match=r"pipe/control is a link, which only a client can have put there"):
        await world.daemons.send("GPU-other", "quit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemons, "STOP_SECONDS", 0.5)
        await world.daemons.stop("GPU-other")
    assert not is_alive(pid)
    assert await world.answers()
    assert not directory.exists(), "the next daemon finds nothing of it"


async def test_no_command_follows_a_link_that_a_client_puts_there_meanwhile(world: World) -> None:
    """Root in a container can swap the socket for a link and back all the time."""
    other = steps.Spec("GPU-other", (steps.MpsGpu("GPU-other", 3, 24 * GIB, 2),))
    await world.daemons.start(SPEC)
    await world.daemons.start(other)
    directory, over = world.daemons.files("GPU-other").pipe, threading.Event()
    os.link(directory / "control", directory / "kept")

    def swap() -> None:
        while not over.is_set():
            (directory / "new").symlink_to(world.daemons.files(UUID).pipe / "control")
            (directory / "new").rename(directory / "control")
            os.link(directory / "kept", directory / "new")
            (directory / "new").rename(directory / "control")

    swapping = asyncio.create_task(asyncio.to_thread(swap))
    answers = set()
    for _ in range(60):
        with contextlib.suppress(ControlError):
            answers.add(await world.daemons.send("GPU-other", supervisor.ALIVE))
    over.set()
    await swapping
    assert answers == {"50.0"}, "each from its own daemon; the other one says 25.0"
    assert sorted(path.name for path in directory.parent.iterdir()) == [
        ".started",
        "clients",
        "log",
        "pipe",
        f"{directory.readlink()}",
    ]


def former(world: World) -> list[Path]:
    """Return the pipe directories of earlier daemons."""
    files = world.daemons.files(UUID)
    return sorted(path for path in files.directory.glob("pipe.*") if path != files.pipe.resolve())


async def restarted(world: World, spec: steps.Spec) -> None:
    """Kill the daemon, and wait for the next one."""
    os.kill(world.pid(), signal.SIGKILL)
    await world.until(lambda: world.daemons.problem(spec.name) != "")
    await world.until(lambda: world.daemons.problem(spec.name) == "")


async def test_a_daemon_that_starts_follows_no_link_of_a_client(world: World, tmp_path: Path) -> None:
    """Containers of clients continue when the daemon ends, with its directory mounted."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    spec = steps.for_shares(UUID)
    await world.daemons.start(spec)
    pid = world.pid()
    process = await asyncio.create_subprocess_exec(
        *command(planting.plants_links, str(victim)),
        cwd=world.daemons.files(UUID).clients.resolve(),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        os.kill(pid, signal.SIGKILL)
        for _ in range(5):
            await world.until(lambda: world.daemons.problem(UUID) != "")
            await world.until(lambda: world.daemons.problem(UUID) == "")
            assert victim.read_text() == "untouched"
            os.kill(world.pid(), signal.SIGKILL)
    finally:
        process.kill()
        await process.wait()


async def test_programs_of_running_containers_find_the_next_daemon(world: World) -> None:
    spec = steps.for_shares(UUID)
    await world.daemons.start(spec)
    files = world.daemons.files(UUID)
    mounted = [os.open(files.clients, os.O_DIRECTORY)]
    for _ in range(2):
        await restarted(world, spec)
        assert not files.clients.samefile(f"/proc/self/fd/{mounted[0]}"), "no container has the new one mounted yet"
        mounted.append(os.open(files.clients, os.O_DIRECTORY))
        found = [os.stat("control", dir_fd=descriptor) for descriptor in mounted]
        assert all(os.path.samestat(one, found[-1]) for one in found)
    for descriptor in mounted:
        os.close(descriptor)


async def test_the_directories_of_few_earlier_daemons_are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "MAX_FORMER", 2)
    spec = steps.for_shares(UUID)
    await world.daemons.start(spec)
    for _ in range(4):
        await restarted(world, spec)
    assert len(former(world)) == 2


async def test_the_directory_of_a_client_is_removed_however_deep_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "REMOVAL_SECONDS", 60.0)
    files = world.daemons.files(UUID)
    outside = world.root.parent / "outside"
    outside.mkdir(parents=True)
    for number in range(pipe.MAX_FORMER + 1):
        (files.directory / f"pipe.{number}").mkdir(parents=True)
    oldest = files.directory / "pipe.0"
    (oldest / "link").symlink_to(outside)
    (oldest / "b").mkdir()
    (oldest / "b" / "file").touch()
    nesting = command(planting.nests_directories, 2000)
    await asyncio.to_thread(subprocess.run, nesting, cwd=oldest, check=True)
    await world.daemons.start(steps.for_shares(UUID))
    assert not oldest.exists()
    assert len(former(world)) == pipe.MAX_FORMER
    assert outside.exists()


async def test_a_directory_with_very_many_files_is_removed_in_little_memory(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root in a client's container can add as many as it likes. The agent has 256 MiB."""
    monkeypatch.setattr(pipe, "REMOVAL_SECONDS", 60.0)
    files = world.daemons.files(UUID)
    oldest = files.directory / "pipe.0"
    for number in range(pipe.MAX_FORMER + 1):
        (files.directory / f"pipe.{number}").mkdir(parents=True)
    (tmp_path / "file").touch()
    for number in range(20_000):
        os.link(tmp_path / "file", oldest / f"{number:0200}")
    tracemalloc.start()
    try:
        await asyncio.to_thread(pipe.retire, files)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert not oldest.exists()


@pytest.mark.parametrize("mounted", ["pipe", "clients"])
async def test_programs_of_containers_from_an_earlier_release_find_the_next_daemon(world: World, mounted: str) -> None:
    """Up to release 0.3 containers mounted `pipe` itself, without a link; a container runtime can make `clients`."""
    files = world.daemons.files(UUID)
    (files.directory / mounted).mkdir(parents=True)
    (files.directory / mounted / "control").touch()
    with open_directory(files.directory / mounted) as descriptor:
        await world.daemons.start(steps.for_shares(UUID))
        assert os.path.samestat(os.stat("control", dir_fd=descriptor), (files.pipe / "control").stat())
        assert not files.pipe.samefile(f"/proc/self/fd/{descriptor}"), "the daemon started in a new one"


@contextlib.contextmanager
def open_directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def test_a_container_created_before_a_daemon_ended_cannot_mount_the_directory_of_the_next(world: World) -> None:
    """A runtime resolves the link when it creates a container, and mounts the directory later."""
    spec, files = steps.for_shares(UUID), world.daemons.files(UUID)
    await world.daemons.start(spec)
    resolved = files.clients.resolve()
    await restarted(world, spec)
    assert files.clients.resolve() != resolved
    assert files.pipe.resolve() == files.clients.resolve()


async def test_a_daemon_that_never_starts_leaves_one_directory(world: World, tmp_path: Path) -> None:
    world.daemons = world.made(tmp_path / "nvidia-cuda-mps-control")
    for _ in range(3):
        with pytest.raises(ControlError, match="cannot be run"):
            await world.daemons.start(SPEC)
    assert len(list(world.daemons.files(UUID).directory.glob("pipe.*"))) == 1


async def test_containers_cannot_mount_the_directory_of_a_daemon_that_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, files = steps.for_shares(UUID), world.daemons.files(UUID)
    await world.daemons.start(spec)
    seen, start = list[bool](), Control.start

    async def observed(self: Control, *, multi_user: bool = False, static: bool = False) -> None:
        seen.append(files.clients.exists() or any(files.pipe.iterdir()))
        await start(self, multi_user=multi_user, static=static)

    monkeypatch.setattr(Control, "start", observed)
    await restarted(world, spec)
    assert seen == [False]
    os.kill(world.pid(), signal.SIGKILL)
    await world.until(lambda: world.daemons.problem(UUID) != "")
    await world.daemons.detach()
    files.clients.unlink(missing_ok=True)
    (files.clients / "made").mkdir(parents=True)  # as containerd does for a missing mount
    world.daemons = world.made()
    await world.daemons.start(spec)
    assert files.clients.samefile(files.pipe)


async def test_a_process_in_another_container_is_not_taken_for_a_daemon(world: World, tmp_path: Path) -> None:
    """A process can choose its name and environment, but not its cgroups."""
    await world.daemons.start(SPEC)
    proc = tmp_path / "proc"
    for pid, cgroup in ((os.getpid(), "0::/"), (world.pid(), f"0::/kubepods/pod{POD}/{'a' * 64}")):
        (proc / str(pid)).mkdir(parents=True)
        for name in ("stat", "comm", "environ"):
            (proc / str(pid) / name).symlink_to(f"/proc/{pid}/{name}")
        (proc / str(pid) / "cgroup").write_text(cgroup)
    with pytest.raises(ProcessLookupError, match="is no MPS daemon"):
        pipe.find_process(world.daemons.files(UUID), os.getpid(), proc=proc)
    (proc / str(world.pid()) / "cgroup").write_text("0::/")
    found = pipe.find_process(world.daemons.files(UUID), os.getpid(), proc=proc)
    assert found is not None
    os.close(found.pidfd)


async def test_each_gpu_has_its_own_daemon(world: World) -> None:
    other = steps.Spec("GPU-other", (steps.MpsGpu("GPU-other", 3, 24 * GIB, 2),))
    await world.daemons.start(SPEC)
    await world.daemons.start(other)
    os.kill(world.pid(), signal.SIGSTOP)
    assert world.daemons.problem("GPU-other") == ""
    assert "default_active_thread_percentage 50.0" in await world.limits("GPU-other")
    os.kill(world.pid(), signal.SIGCONT)


@pytest.mark.slow
async def test_a_daemon_that_hangs_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(daemons, "PROBE_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(daemons, "STOP_SECONDS", 0.2)
    await world.daemons.start(SPEC)
    monkeypatch.setattr("deviceplugin.mps.supervisor.SECONDS", 0.5)
    pid = world.pid()
    os.kill(pid, signal.SIGSTOP)
    await world.until(lambda: world.daemons.problem(UUID) == "it did not answer")
    await world.until(lambda: world.daemons.problem(UUID) == "")
    assert world.pid() != pid


async def test_a_daemon_that_hung_before_the_agent_started_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.daemons.start(SPEC)
    pid = world.pid()
    os.kill(pid, signal.SIGSTOP)
    await world.daemons.detach()
    monkeypatch.setattr("deviceplugin.mps.supervisor.SECONDS", 0.3)
    monkeypatch.setattr(daemons, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(daemons, "FIRST_PAUSE_SECONDS", 60.0)
    world.daemons = world.made()
    for _ in range(daemons.MAX_SILENCES - 1):
        with pytest.raises(ControlError, match="does not answer: the agent ends it and its clients after 3 attempts"):
            await world.daemons.start(SPEC)
        assert is_alive(pid)
    monkeypatch.setattr("deviceplugin.mps.supervisor.SECONDS", 15.0)
    monkeypatch.setattr(Control, "answers", silent)
    await world.daemons.start(SPEC)
    assert not is_alive(pid)
    assert world.pid() != pid


async def silent(_: Control) -> bool:
    return False


async def test_what_clients_wrote_is_removed_when_no_share_uses_the_daemon(world: World) -> None:
    spec, files = steps.for_shares(UUID), world.daemons.files(UUID)
    await world.daemons.start(spec)
    (files.pipe / "large").write_bytes(b"1" * 1000)
    await restarted(world, spec)
    (files.pipe / "large").write_bytes(b"1" * 1000)

    async def used(_: str) -> bool:
        return is_used

    for is_used in (True, False):
        await world.daemons.stop(UUID, for_shares=True, is_used=used)
        assert bool(list(files.directory.glob("pipe*/large"))) is is_used
    assert not list(files.directory.glob("pipe*"))


async def test_a_missing_program_is_named_and_retried(world: World, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    world.daemons = world.made(program)
    with pytest.raises(ControlError, match=r"cannot be run .No such file or directory.: it comes with the driver"):
        await world.daemons.start(SPEC)
    assert "cannot be run" in world.daemons.problem(UUID) or world.daemons.problem(UUID) == "it is not started yet"
    program.symlink_to(PROGRAM)
    await world.until(lambda: world.daemons.problem(UUID) == "")
    assert world.modes == {UUID: True}


async def test_a_gpu_whose_mode_cannot_be_set_has_no_daemon(world: World) -> None:
    async def refuse(uuid: str, exclusive: bool) -> None:
        raise PermissionError("the driver does not let us")

    refusing: Callable[[str, bool], Awaitable[None]] = refuse
    daemons = Daemons(root=world.root, program=PROGRAM, set_exclusive=refusing)
    with pytest.raises(ControlError, match=f"the compute mode of {UUID} cannot be set: the driver does not let us"):
        await daemons.start(SPEC)
    assert not await world.answers()
    await daemons.detach()


@pytest.mark.slow
async def test_programs_get_no_more_than_their_limits(world: World, gpus: Path) -> None:
    uuid = simulated.uuids(gpus)[0]
    spec = steps.Spec(uuid, (steps.MpsGpu(uuid, 0, 40 * GIB, 4, at_once=4),))
    await world.daemons.start(spec)
    own = steps.container_environment(40 * GIB, replicas=4, held=1)
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(world.daemons.files(uuid).pipe)}
    assert await granted_gib(gpus, {**own, **pipe}) == 10, "one share of four"
    assert await granted_gib(gpus, pipe) == 40, "the daemon allows what the largest container may have"
    await world.daemons.stop(uuid)  # a running server keeps its limits
    await world.daemons.start(steps.Spec(uuid, (steps.MpsGpu(uuid, 0, 40 * GIB, 4),)))
    assert await granted_gib(gpus, pipe) == 10
    assert await granted_gib(gpus, {**pipe, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=30G"}) == 10, "never wider"


async def granted_gib(gpus: Path, variables: dict[str, str]) -> int:
    """Return how many GiB a program can allocate, one after the other."""
    process = await asyncio.create_subprocess_exec(
        *command(filling.fills_by_the_gib),
        env={**simulated.environment(gpus), **variables},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return int(output)


async def test_failed_servers_are_logged_even_if_their_daemon_answers(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemons, "PROBE_SECONDS", 0.05)
    await world.daemons.start(SPEC)
    line = "[2026-01-01 00:00:00.000 Control 64] Server {} exited with status {}\n"
    with (world.daemons.files(UUID).log / "control.log").open("a") as log:
        log.write(line.format(91, 0) + line.format(92, 1) + line.format(93, 139))
    await waiting.until(lambda: "MPS servers failed" in caplog.text)
    (found,) = (vars(record) for record in caplog.records if record.message.startswith("MPS servers failed"))
    assert (found["times"], found["line"]) == (2, line.format(93, 139).strip())
    assert world.daemons.problem(UUID) == ""
