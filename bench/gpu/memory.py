"""Memory: whether a limit holds to the byte for each kind of allocation, and what the GPU itself says is in use."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess

from bench.gpu.bench import Bench
from bench.gpu.modes import OURS, Mode
from bench.gpu.tenants import BUILT, Gpu, ProgramError

KINDS = {"plain": 1, "pitched": 512, "managed": 1, "async": 1, "pool": 1, "physical": 2 << 20, "array": 65536}
UNTOUCHED = {"managed"}  # takes nothing on the GPU before it is used
LIMIT = (8 << 30) + 123_456_789
PROCESSES = 4
MIB = 1 << 20


async def exactness(bench: Bench) -> None:
    """What can be taken of a share, by one process and by four, of each kind."""
    limit = min(LIMIT, bench.gpu.machine.memory_bytes // 2 + 123_457)
    rows = []
    for mode in (OURS, *bench.peers):
        for kind, unit in KINDS.items():
            exact = limit // unit * unit
            row = [f"{kind}, {mode.name}"]
            for count in (1, PROCESSES):
                filled, on_gpu = await fill_together(bench.gpu, mode, kind, limit, count)
                if filled is None:
                    row += ["refused", ""]
                    continue
                bench.report.add(f"memory.{kind}.{count}.{mode.name}.beyond", filled - exact, "bytes")
                row += [f"{filled - exact:+d}", f"{(on_gpu - filled) / MIB:.0f}" if kind not in UNTOUCHED else ""]
            rows.append(row)
    head = ["", "1 process: bytes beyond", "GPU's own, MiB", f"{PROCESSES}: bytes beyond", "GPU's own, MiB"]
    bench.report.table(f"Filling a share of {limit} bytes", head, rows)


async def fill_together(gpu: Gpu, mode: Mode, kind: str, limit: int, count: int) -> tuple[int | None, int]:
    """What so many processes of one share hold together, and what that takes of the GPU; None: the kind is refused."""
    share = gpu.give(memory_bytes=limit) if mode.ours else None
    before = gpu.machine.used_bytes()
    filled = 0
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            process = gpu.start(mode, [BUILT / "fill", kind, str(limit)], share, memory_bytes=limit)
            stack.push_async_callback(_end, process)
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            if not line.startswith("filled "):
                assert process.stderr is not None
                said = await asyncio.to_thread(process.stderr.read)
                if "801" in said:  # not supported: what cannot be counted is refused
                    return None, 0
                raise ProgramError(f"{kind}: {said}")
            filled += int(line.split()[1])
        return filled, gpu.machine.used_bytes() - before


async def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    await asyncio.to_thread(process.communicate)
