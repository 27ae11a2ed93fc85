"""MPS daemons, with a small program that takes commands over its pipe as NVIDIA's does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from deviceplugin.mps import daemon, pipe, steps
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.supervisor import Control, ControlError
from tests.deviceplugin import simulated, waiting
from tests.deviceplugin.mps.daemon_world import GIB, OTHER, POD, PROGRAM, SPEC, UUID, World, is_alive, world
from tests.deviceplugin.mps.programs import filling
from tests.programs import command

__all__ = ["world"]  # a fixture


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
    monkeypatch.setattr(daemon, "PROBE_SECONDS", 0.05)
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
    monkeypatch.setattr(daemon, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(daemon, "PROBE_AGAIN_SECONDS", 0.01)
    program, log = tmp_path / "control", tmp_path / "commands"
    program.write_text(
        f'#!/bin/sh\nread -r line\necho "$line" >> {log}\n'
        'case "$line" in get_server_list) seq 1000 ;; set_active*) exit 1 ;; esac\n'
    )
    program.chmod(0o755)
    made = World(tmp_path / "mps")
    made.daemons = made.made(program)
    await made.daemons.start(steps.for_shares(UUID))
    await waiting.until(lambda: log.read_text().count("get_server_list") > daemon.MAX_SILENCES + 1)
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


async def test_the_pid_of_another_gpus_daemon_is_not_accepted(world: World) -> None:
    await world.daemons.start(SPEC)
    await world.daemons.start(OTHER)
    assert world.daemons.pids() == {world.pid(), world.pid(OTHER.name)}
    await world.daemons.detach()
    world.daemons.files(OTHER.name).pid_file.write_text(str(world.pid()))
    with pytest.raises(ProcessLookupError, match="is no MPS daemon with the pipe"):
        pipe.find_process(world.daemons.files(OTHER.name), os.getpid())
    world.daemons = world.made()
    await world.daemons.stop(OTHER.name)
    assert is_alive(world.pid())
    assert world.daemons.pids() == {world.pid()}
    assert not await world.answers(OTHER.name)
    await world.daemons.start(SPEC)


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
    await world.daemons.start(SPEC)
    await world.daemons.start(OTHER)
    os.kill(world.pid(), signal.SIGSTOP)
    assert world.daemons.problem(OTHER.name) == ""
    assert "default_active_thread_percentage 50.0" in await world.limits(OTHER.name)
    os.kill(world.pid(), signal.SIGCONT)


@pytest.mark.slow
async def test_a_daemon_that_hangs_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(daemon, "PROBE_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(daemon, "STOP_SECONDS", 0.2)
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
    monkeypatch.setattr(daemon, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(daemon, "FIRST_PAUSE_SECONDS", 60.0)
    world.daemons = world.made()
    for _ in range(daemon.MAX_SILENCES - 1):
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
    monkeypatch.setattr(daemon, "PROBE_SECONDS", 0.05)
    await world.daemons.start(SPEC)
    line = "[2026-01-01 00:00:00.000 Control 64] Server {} exited with status {}\n"
    with (world.daemons.files(UUID).log / "control.log").open("a") as log:
        log.write(line.format(91, 0) + line.format(92, 1) + line.format(93, 139))
    await waiting.until(lambda: "MPS servers failed" in caplog.text)
    (found,) = (vars(record) for record in caplog.records if record.message.startswith("MPS servers failed"))
    assert (found["times"], found["line"]) == (2, line.format(93, 139).strip())
    assert world.daemons.problem(UUID) == ""
