"""Programs on the GPU: as they are, in a share of gpushare's, or with another library that limits them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from bench.gpu import machine
from bench.gpu.modes import OURS, Mode
from bench.launches.node import Done, Tenant
from gpushare.allocation import GivenShare
from tests.deviceplugin import arbiter_node
from tests.interposer import container

ROOT = machine.ROOT
SOURCES = ROOT / "bench"
BUILT = ROOT / "build" / "bench" / "gpu"
MIB = 1 << 20


def build() -> None:
    """Build what runs on the GPU, and the library. The programs are linked against the simulated driver's names."""
    for part in ("simgpu", "interposer"):
        subprocess.run(["make", "-s", "-C", ROOT / part], check=True)
    BUILT.mkdir(parents=True, exist_ok=True)
    flags = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    driver = [f"-L{machine.SIMULATED}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]
    for name, source, libraries in (
        ("load", "launches/load.c", driver),
        ("fill", "gpu/fill.c", driver),
        ("calls", "gpu/calls.c", ["-ldl"]),
    ):
        fresh = BUILT / f".{name}.{os.getpid()}"
        subprocess.run([*flags, "-o", fresh, SOURCES / source, *libraries], check=True)
        fresh.replace(BUILT / name)


class Gpu:
    """The GPU with an arbiter in front of it. loops: how much work a nanosecond is on it, see `calibrate`."""

    def __init__(self, which: machine.Machine, arbiter: arbiter_node.ArbiterNode, loops: int) -> None:
        self.machine = which
        self.arbiter = arbiter
        self._count = 0
        self._loops = loops

    def give(
        self, *, request: int = 100, limit: int = 100, memory_bytes: int = 0, latency: bool = False
    ) -> dict[str, str]:
        """A new pod with a share; the environment that says to the arbiter of this bench whose a process is."""
        self._count += 1
        name = f"t{self._count}"
        share = GivenShare(("main",), (self.machine.uuid,), request, limit, memory_bytes or self.machine.memory_bytes)
        self.arbiter.add_pod(name, share)
        if latency:
            self.arbiter.allocations[-1] = dataclasses.replace(self.arbiter.allocations[-1], latency=True)
        return {"TEST_POD": name, "TEST_CONTAINER": "main"}

    def start(
        self, mode: Mode, command: Sequence[str | Path], share: Mapping[str, str] | None = None, **amounts: int
    ) -> subprocess.Popen[str]:
        """Start a program in a share (a new one that has `amounts`, if there is none yet); pipes to and from it."""
        if mode.ours:
            own = dict(share or self.give(**amounts))  # type: ignore[arg-type]
        else:
            memory = amounts.get("memory_bytes", self.machine.memory_bytes)
            facts = {"limit": amounts.get("limit", 100), "memory": memory, "memory_mib": memory // MIB}
            own = {name: value.format(**facts) for name, value in mode.variables.items()}
        box = container.Container(self.arbiter.socket.parent, Path("/nowhere"), mode.preload)
        return box.start(command, {**self.machine.environment, "SPIN_LOOPS": str(self._loops), **own})

    async def run(
        self,
        mode: Mode,
        command: Sequence[str | Path],
        share: Mapping[str, str] | None = None,
        *,
        seconds: float = 60,
        **amounts: int,
    ) -> subprocess.CompletedProcess[str]:
        """Run one to its end, which must be good."""
        process = self.start(mode, command, share, **amounts)
        try:
            output, errors = await asyncio.to_thread(process.communicate, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            await asyncio.to_thread(finish_all, [process])
            raise ProgramError(f"{mode.name}: {Path(command[0]).name} did not end in {seconds:g} seconds") from error
        if process.returncode != 0:
            raise ProgramError(
                f"{mode.name}: {Path(command[0]).name} ended with {process.returncode}: {errors[-2000:]}"
            )
        return subprocess.CompletedProcess(list(command), 0, output, errors)

    async def compete(self, mode: Mode, tenants: Sequence[Tenant], seconds: float, warm_ms: int = 1500) -> list[Done]:
        """Let programs work side by side for so long, each in a share of its own, after a moment to warm up."""
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
            said = [output for output, _ in await asyncio.gather(*answers)]
        finally:
            await asyncio.to_thread(finish_all, processes)
        return [_done(tenant, line) for tenant, line in zip(tenants, said, strict=True)]

    @contextlib.asynccontextmanager
    async def holding(
        self, command: Sequence[str | Path], word: str, share: Mapping[str, str], mode: Mode = OURS
    ) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
        """A program that has come so far as to say `word`, and its line; ended when the context ends."""
        process = self.start(mode, command, share)
        try:
            yield process, await asyncio.to_thread(wait_for, process, word)
        finally:
            await asyncio.to_thread(finish_all, [process])


class ProgramError(Exception):
    """A program that is measured failed; the message has what it said."""


def python(script: Path, *words: object) -> list[str | Path]:
    """The command of a Python program of this bench, with the interpreter that runs it."""
    return [sys.executable, script, *map(str, words)]


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """The line of a program that begins with `word`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise ProgramError(f"it ended before it said {word!r}: {process.communicate()[1][-2000:]}")


def finish_all(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End what still runs, and close its pipes."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def _done(tenant: Tenant, line: str) -> Done:
    launches, counted_ms, first_ms, *latencies = line.split()
    counted = float(counted_ms)  # none, of one that was held up from before the beginning to after the end
    percent = int(launches) * tenant.kernel_us / 10 / counted if counted > 0 else 0.0
    return Done(percent, float(first_ms), tuple(float(latency) / 1000 for latency in latencies))


def calibrate(which: machine.Machine) -> int:
    """How much work a nanosecond is on this GPU, so that a kernel of a millisecond takes one."""
    environment = {**os.environ, **which.environment}
    command: list[str | Path] = [BUILT / "load", "calibrate"]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout)


@contextlib.asynccontextmanager
async def opened(which: machine.Machine, directory: Path, loops: int) -> AsyncIterator[Gpu]:
    """The GPU with an arbiter of its own, whose files are in `directory`."""
    async with arbiter_node.opened(directory) as arbiter:
        arbiter.server.leases.settle()  # not an agent that has just started, and does not know who else is there
        yield Gpu(which, arbiter, loops)
