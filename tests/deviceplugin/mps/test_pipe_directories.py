"""Directories of MPS daemons in which their clients write, as root and with hostile intent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deviceplugin.mps import daemon, pipe, steps, supervisor
from deviceplugin.mps.supervisor import Control, ControlError
from tests.deviceplugin.mps.daemon_world import OTHER, SPEC, UUID, World, is_alive, restarted, world
from tests.deviceplugin.mps.programs import planting
from tests.programs import command

__all__ = ["world"]  # a fixture


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


async def test_no_command_goes_through_a_link_to_another_gpus_daemon(world: World) -> None:
    await world.daemons.start(SPEC)
    await world.daemons.start(OTHER)
    pid, directory = world.pid(OTHER.name), world.daemons.files(OTHER.name).pipe
    (directory / "control").unlink()
    (directory / "control").symlink_to(f"../../{UUID}/pipe/control")
    (directory / "full").mkdir()
    (directory / "full" / "file").touch()
    with pytest.raises(ControlError, match=r"pipe/control is a link, which only a client can have put there"):
        await world.daemons.send(OTHER.name, "quit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemon, "STOP_SECONDS", 0.5)
        await world.daemons.stop(OTHER.name)
    assert not is_alive(pid)
    assert await world.answers()
    assert not directory.exists(), "the next daemon finds nothing of it"


async def test_no_command_follows_a_link_that_a_client_puts_there_meanwhile(world: World) -> None:
    """Root in a container can swap the socket for a link and back all the time."""
    await world.daemons.start(SPEC)
    await world.daemons.start(OTHER)
    directory, over = world.daemons.files(OTHER.name).pipe, threading.Event()
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
            answers.add(await world.daemons.send(OTHER.name, supervisor.ALIVE))
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
