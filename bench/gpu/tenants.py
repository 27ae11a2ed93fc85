"""Starts programs on the GPU: natively, in a share of gpushare, or under another library that limits them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from bench.gpu import machine
from bench.gpu.modes import NATIVE, OURS, Mode, mode_variables
from bench.launches.node import Done, Tenant
from gpushare import contract
from gpushare.allocation import GivenShare, Isolation
from tests.deviceplugin import arbiter_node

ROOT = machine.ROOT
SOURCES = ROOT / "bench"
BUILT = ROOT / "build" / "bench" / "gpu"
END_SECONDS = 10.0  # for killed processes to end: one that hangs in the driver must not hold up the bench
_started: list[subprocess.Popen[str]] = []

_ENTER = f"""
mount -t tmpfs none /run && mkdir -p {contract.CONTAINER_ARBITER_DIRECTORY} || exit 125
mount --bind "$1" {contract.CONTAINER_ARBITER_DIRECTORY} || exit 125
[ -z "$2" ] || {{ mkdir {contract.CONTAINER_MPS_PIPE} && mount --bind "$2" {contract.CONTAINER_MPS_PIPE}; }} || exit 125
shift 2
exec "$@"
"""


class ProgramError(Exception):
    """A measured program failed. The message holds its output."""


def build() -> None:
    """Build the library and the programs. They link against the simulated driver's names; warnings do not matter."""
    jobs = f"-j{os.cpu_count() or 1}"
    for part in ("simgpu", "interposer"):
        subprocess.run(["make", "-s", jobs, "-C", ROOT / part, "WERROR="], check=True)
    BUILT.mkdir(parents=True, exist_ok=True)
    driver = [f"-L{machine.SIMULATED}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]
    for source, libraries in (
        (SOURCES / "launches" / "load.c", driver),
        (SOURCES / "gpu" / "fill.c", driver),
        (SOURCES / "gpu" / "calls.c", ["-ldl"]),
    ):
        compile_program(source, libraries)


def compile_program(source: Path, libraries: Sequence[str]) -> None:
    """Compile one C file to the program of its name in `BUILT`."""
    fresh = BUILT / f".{source.stem}.{os.getpid()}"
    subprocess.run(["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-o", fresh, source, *libraries], check=True)
    fresh.replace(BUILT / source.stem)


@functools.cache
def has_namespaces() -> bool:
    """Whether programs can get their own mount namespaces, as in containers. Sandboxes may refuse them."""
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /run"]
    try:
        return subprocess.run(probe, capture_output=True, check=False, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Gpu:
    """The GPU with an arbiter in front of it. loops: the work of a nanosecond on it, see `calibrate`."""

    def __init__(self, which: machine.Machine, arbiter: arbiter_node.ArbiterNode, loops: int) -> None:
        self.machine = which
        self.arbiter = arbiter
        self._count = 0
        self._loops = loops

    def give(
        self,
        *,
        request: int = 100,
        limit: int = 100,
        memory_bytes: int = 0,
        latency: bool = False,
        isolation: Isolation = Isolation.ARBITER,
    ) -> dict[str, str]:
        """Add a pod with a share. Return the environment that identifies its processes to this bench's arbiter."""
        self._count += 1
        name = f"t{self._count}"
        share = GivenShare(("main",), (self.machine.uuid,), request, limit, memory_bytes or self.machine.memory_bytes)
        self.arbiter.add_pod(name, share, isolation=isolation)
        if latency:
            self.arbiter.allocations[-1] = dataclasses.replace(self.arbiter.allocations[-1], latency=True)
        return {"TEST_POD": name, "TEST_CONTAINER": "main"}

    def start(
        self, mode: Mode, command: Sequence[str | Path], share: Mapping[str, str] | None = None, **amounts: int
    ) -> subprocess.Popen[str]:
        """Start a program, with pipes, in `share` or in a new share with `amounts`."""
        if mode.ours:
            own = dict(share or self.give(isolation=mode.isolation, **amounts))  # type: ignore[arg-type]
        else:
            self._count += 1
            memory = amounts.get("memory_bytes", self.machine.memory_bytes)
            name = (share or {}).get("TEST_POD", f"t{self._count}")
            own = mode_variables(mode, share=name, limit=amounts.get("limit", 100), memory_bytes=memory)
        environment = {**self.machine.environment, "SPIN_LOOPS": str(self._loops), **own}
        return start_in(self.arbiter.socket.parent, mode, command, environment)

    async def run(
        self,
        mode: Mode,
        command: Sequence[str | Path],
        share: Mapping[str, str] | None = None,
        *,
        seconds: float = 60,
        **amounts: int,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end. Raises ProgramError unless it exits with 0 in time."""
        process = self.start(mode, command, share, **amounts)
        try:
            output, errors = await asyncio.to_thread(process.communicate, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise ProgramError(f"{mode.name}: {Path(command[0]).name} did not end in {seconds:g} seconds") from error
        finally:
            await asyncio.to_thread(finish_all, [process])
        if process.returncode != 0:
            raise ProgramError(
                f"{mode.name}: {Path(command[0]).name} ended with {process.returncode}: {errors[-2000:]}"
            )
        return subprocess.CompletedProcess(list(command), 0, output, errors)

    async def compete(self, mode: Mode, tenants: Sequence[Tenant], seconds: float, warm_ms: int = 1500) -> list[Done]:
        """Run programs side by side, each in its own share, and count their work in the window after the warm-up."""
        processes = []
        try:
            for tenant in tenants:
                amounts: dict[str, int] = {"request": tenant.request, "limit": tenant.limit, "latency": tenant.latency}
                processes.append(
                    self.start(mode, [BUILT / "load", tenant.mode, str(tenant.kernel_us)], None, **amounts)
                )
            for process in processes:
                await asyncio.to_thread(wait_for, process, "ready")
            begin = int(time.monotonic() * 1000) + 100
            answers = []
            for tenant, process in zip(tenants, processes, strict=True):
                moments = (begin + tenant.after_ms, begin + warm_ms, begin + warm_ms + int(seconds * 1000))
                text = " ".join(map(str, moments)) + "\n"
                answers.append(asyncio.to_thread(process.communicate, text, timeout=seconds + 40))
            said = await asyncio.gather(*answers)
        finally:
            await asyncio.to_thread(finish_all, processes)
        for tenant, process, (_, errors) in zip(tenants, processes, said, strict=True):
            if process.returncode != 0:
                raise ProgramError(f"{mode.name}: load {tenant.mode} ended with {process.returncode}: {errors[-2000:]}")
        return [_done(tenant, output) for tenant, (output, _) in zip(tenants, said, strict=True)]

    @contextlib.asynccontextmanager
    async def holding(
        self, command: Sequence[str | Path], word: str, share: Mapping[str, str] | None = None, mode: Mode = OURS
    ) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
        """Run a program for the block. Yields it and its line that begins with `word`."""
        process = self.start(mode, command, share)
        try:
            yield process, await asyncio.to_thread(wait_for, process, word)
        finally:
            await asyncio.to_thread(finish_all, [process])

    @contextlib.asynccontextmanager
    async def working(self, mode: Mode, kernel_us: int, seconds: float, request: int) -> AsyncIterator[None]:
        """Run a neighbour for the block that launches kernels without a pause, for at most `seconds`."""
        share = self.give(request=request) if mode.ours else None
        async with self.holding([BUILT / "load", "async", str(kernel_us)], "ready", share, mode) as (process, _):
            now_ms = int(time.monotonic() * 1000)
            assert process.stdin is not None
            process.stdin.write(f"{now_ms} {now_ms} {now_ms + int(seconds * 1000)}\n")
            process.stdin.flush()
            yield


def start_in(
    arbiter_directory: Path, mode: Mode, command: Sequence[str | Path], environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start a program in its own process group, with the arbiter at the path that containers have.

    All modes start in the same way, so that all figures contain its cost. Where namespaces are refused, `opened`
    provides that path.
    """
    mounted = [str(arbiter_directory), str(mode.mps_pipe or "")]
    inside = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", *mounted] if has_namespaces() else []
    preload = [f"LD_PRELOAD={' '.join(map(str, mode.preload))}"] if mode.preload else []
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*inside, "env", *preload, *map(str, command)],
        env=dict(environment),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )
    _started.append(process)
    return process


def kill_all() -> None:
    """Kill the process groups of all programs that still run, without waiting for them."""
    for process in _started:
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def python(script: Path, *words: object) -> list[str | Path]:
    """Return the command of a Python program, with the interpreter of the bench."""
    return [sys.executable, script, *map(str, words)]


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Return a program's next line that begins with `word`. Raises ProgramError at the end of its output."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise ProgramError(f"it ended before it printed {word!r}: {process.communicate()[1][-2000:]}")


def finish_all(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Kill the process groups of running programs and close the pipes."""
    for process in processes:
        _kill(process)
    end = time.monotonic() + END_SECONDS
    for process in processes:
        if process.stdout is not None and not process.stdout.closed:
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
                process.communicate(timeout=max(0.1, end - time.monotonic()))


def _done(tenant: Tenant, line: str) -> Done:
    launches, counted_ms, first_ms, *latencies = line.split()
    counted = float(counted_ms)  # 0 if a stall covered the whole window
    percent = int(launches) * tenant.kernel_us / 10 / counted if counted > 0 else 0.0
    return Done(percent, float(first_ms), tuple(float(latency) / 1000 for latency in latencies))


def calibrate(which: machine.Machine) -> int:
    """Return the loops of a kernel of one nanosecond on this GPU."""
    process = start_in(ROOT, NATIVE, [BUILT / "load", "calibrate"], which.environment)
    try:
        output, errors = process.communicate(timeout=60)
    finally:
        finish_all([process])
    if process.returncode != 0:
        raise ProgramError(f"the GPU could not be calibrated: {errors[-2000:]}")
    return int(output)


@contextlib.asynccontextmanager
async def opened(which: machine.Machine, directory: Path, loops: int) -> AsyncIterator[Gpu]:
    """Open the GPU with a new arbiter, whose files are in `directory`."""
    async with arbiter_node.opened(directory) as arbiter:
        arbiter.server.leases.settled_ns = 0  # skips the wait of a new agent that does not know the other shares yet
        with reachable(arbiter.socket.parent, contract.CONTAINER_ARBITER_DIRECTORY):
            yield Gpu(which, arbiter, loops)


@contextlib.contextmanager
def reachable(directory: Path, place: str) -> Iterator[None]:
    """Link a directory to its place in containers if programs get no namespaces."""
    if has_namespaces():
        yield
        return
    link = Path(place)
    if link.is_symlink():  # left by a run that was killed
        link.unlink()
    link.symlink_to(directory)
    try:
        yield
    finally:
        link.unlink(missing_ok=True)  # may be gone: a second arbiter of the same case has replaced it
