"""Memory: whether limits hold to the byte for each kind of allocation, and how much the GPU reports as in use."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.tenants import BUILT, END_SECONDS, ROOT, Gpu, ProgramError, finish_all, reachable, start_in, wait_for
from gpushare import contract

KINDS = {"plain": 1, "pitched": 512, "managed": 1, "async": 1, "pool": 1, "physical": 2 << 20, "array": 65536}
UNTOUCHED = {"managed"}  # allocates nothing on the GPU before its first use
LIMIT = (8 << 30) + 123_456_789
BEYOND = 1 << 30  # beyond its limit, a program counts as unlimited
PROCESSES = 4
MIB = 1 << 20
NOT_SUPPORTED = " 801"  # of cuda.h: gpushare refuses what it cannot count
LOOKS = 4  # the second audit charges contexts, the third learns their size


async def exactness(bench: Bench) -> None:
    """Fill a share by each kind of allocation, from one process and from four."""
    limit = min(LIMIT, bench.gpu.machine.memory_bytes // 4 + 123_457)
    rows: list[list[str]] = []
    head = ["", "1 process: bytes beyond", "GPU's own, MiB", f"{PROCESSES}: bytes beyond", "GPU's own, MiB"]
    bench.report.table(f"Filling a share of {limit} bytes", head, rows)
    for mode in (OURS, *(peer for peer in bench.peers if peer.limits_memory)):
        kept, before = False, len(rows)
        for kind, unit in KINDS.items():
            row, bit = await _row(bench, mode, kind, unit, limit)
            rows.append(row)
            kept |= bit
        if not kept:  # a wrong set-up: its figures would be unfair
            del rows[before:]
            bench.report.fail(f"memory.{mode.name}", "its limit was never kept, so it gets no rows: check its set-up")
    filled, _ = await fill_together(bench.gpu, NATIVE, "plain", limit, 1, limit + BEYOND)
    rows.append(["plain, native", f"{(filled or 0) - limit:+d} (no limit)", "", "", ""])


async def _row(bench: Bench, mode: Mode, kind: str, unit: int, limit: int) -> tuple[list[str], bool]:
    """Return one row of the table, and whether the limit held."""
    exact = limit // unit * unit
    row, bit = [f"{kind}, {mode.name}"], False
    for count in (1, PROCESSES):
        row += ["failed", ""]
        with bench.row(f"memory.{kind}.{count}.{mode.name}"):
            filled, on_gpu = await fill_together(bench.gpu, mode, kind, limit, count, limit + BEYOND)
            if filled is None:
                row[-2] = "refused"
                continue
            bit |= filled <= exact
            bench.report.add(f"memory.{kind}.{count}.{mode.name}.beyond", filled - exact, "bytes")
            row[-2:] = [f"{filled - exact:+d}", f"{(on_gpu - filled) / MIB:.0f}" if kind not in UNTOUCHED else ""]
    return row, bit


async def fill_together(
    gpu: Gpu, mode: Mode, kind: str, limit: int, count: int, most_bytes: int | None = None
) -> tuple[int | None, int]:
    """Return the bytes that `count` processes fill (None: the kind is refused) and the GPU's own figure."""
    share = gpu.give(memory_bytes=limit) if mode.ours else {"TEST_POD": f"{mode.name}-{kind}-{count}"}
    before = gpu.machine.used_bytes()
    filled = 0
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            command: list[str | Path] = [BUILT / "fill", kind, str(limit), *([str(most_bytes)] if most_bytes else [])]
            process = gpu.start(mode, command, share, memory_bytes=limit)
            stack.push_async_callback(asyncio.to_thread, finish_all, [process])
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            if not line.startswith("filled "):
                assert process.stderr is not None
                said = await asyncio.to_thread(process.stderr.read)
                if mode.ours and NOT_SUPPORTED in said:
                    return None, 0
                raise ProgramError(f"{kind}: {said}")
            filled += int(line.split()[1])
        return filled, gpu.machine.used_bytes() - before


@dataclasses.dataclass(frozen=True, slots=True)
class Audited:
    """An arbiter with the agent's audit, in a separate process. directory: the parent of its socket's folder."""

    process: subprocess.Popen[str]
    directory: Path

    async def ask(self, question: str) -> Any:
        """Send one question of `tests.deviceplugin.audit_node` and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        try:
            async with asyncio.timeout(END_SECONDS):
                line = await asyncio.to_thread(self.process.stdout.readline)
        except TimeoutError as error:
            raise ProgramError(f"the agent's audit has no answer to {question!r} after {END_SECONDS:g} s") from error
        if not line:
            raise ProgramError(f"the agent's audit has ended: {self.process.communicate()[1][-1500:]}")
        return json.loads(line)


@contextlib.asynccontextmanager
async def audited(gpu: Gpu, pods: dict[str, list[int]]) -> AsyncIterator[Audited]:
    """Run arbiter and audit for these pods, each with its memory in bytes and the index of its GPU."""
    # Short: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="audit-") as directory:
        command = [sys.executable, "-m", "tests.deviceplugin.audit_node", directory, json.dumps(pods)]
        process = await asyncio.to_thread(
            subprocess.Popen[str],
            command,
            cwd=ROOT,
            env=gpu.machine.with_project(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            if await asyncio.to_thread(process.stdout.readline) != "null\n":
                process.kill()
                raise ProgramError(f"the agent's audit does not start: {process.communicate()[1][-1500:]}")
            made = Audited(process, Path(directory))
            with reachable(made.directory / "arbiter", contract.CONTAINER_ARBITER_DIRECTORY):
                yield made
        finally:
            await asyncio.to_thread(finish_all, [process])


async def audit(bench: Bench) -> None:
    """Compare the GPU's own figure with the limit while the agent's audit runs, which charges contexts.

    Four processes fill a share, twice. The size of a context is unknown at first: the audit measures and charges it
    while the first four run. The next four are charged before they create their contexts.
    """
    limit = min(LIMIT, bench.gpu.machine.memory_bytes // 4)
    rows: list[list[str]] = []
    head = ["processes", "they hold, MiB", "charged, MiB", "GPU's own, MiB", "GPU's own - limit, MiB", "audit"]
    bench.report.table(f"Four processes of a share of {limit} bytes, and the agent's audit", head, rows)
    async with audited(bench.gpu, {"first": [limit, 0], "second": [limit, 0]}) as agent:
        for pod in ("first", "second"):
            row = await _audited(bench, agent, pod, limit)
            rows.append(row)


async def _audited(bench: Bench, agent: Audited, pod: str, limit: int) -> list[str]:
    gpu = bench.gpu
    before = gpu.machine.used_bytes()
    environment = {**gpu.machine.environment, "TEST_POD": pod, "TEST_CONTAINER": "main"}
    processes: list[subprocess.Popen[str]] = []
    try:
        filled = 0
        for _ in range(PROCESSES):
            part = str(limit // PROCESSES)
            command: list[str | Path] = [BUILT / "fill", "plain", part, part]
            processes.append(start_in(agent.directory / "arbiter", OURS, command, environment))
            filled += int((await asyncio.to_thread(wait_for, processes[-1], "filled")).split()[1])
            await agent.ask("look")
        for _ in range(LOOKS):
            await asyncio.sleep(0.5)  # of the driver's figures
            seen = await agent.ask("look")
        used = gpu.machine.used_bytes() - before
    finally:
        await asyncio.to_thread(finish_all, processes)
    (share,) = (share for share in seen["audit"]["shares"] if share["pod"] == pod)
    charged = share["chargedBytes"] + share["overheadBytes"]
    bench.report.add(f"audit.{pod}.gpu", used, "bytes", against="limit", goal=float(limit))
    bench.report.add(f"audit.{pod}.charged", charged, "bytes", against="GPU's own", goal=float(used))
    condition = seen["conditions"][0]
    figures = [f"{size / MIB:.0f}" for size in (filled, charged, used, used - limit)]
    return [pod, *figures, f"{condition['type']}={condition['status']}"]
