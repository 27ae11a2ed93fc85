"""PyTorch of the machine's own: what training and inference lose, how two of them share, what memory they see."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.report import spread
from bench.gpu.tenants import Gpu, ProgramError, finish_all, python, wait_for

PROGRAM = Path(__file__).with_name("torch_work.py")
STORIES = Path(__file__).with_name("torch_stories.py")
WORKLOADS = ("train", "infer", "matmul", "convolve")
LIMIT = 8 << 30


async def torch(bench: Bench) -> None:
    """Steps a second, native and in a whole share in turn; two trainings at 30 and 70; the end of a share's memory."""
    if not await present(bench.gpu):
        bench.report.say("\nPyTorch: not measured, this machine's Python has none that sees the GPU")
        return
    rows = []
    for name in WORKLOADS:
        done: dict[str, list[float]] = {}
        for _ in range(bench.rounds):
            for mode in (NATIVE, OURS, *bench.peers):
                done.setdefault(mode.name, []).extend(await rates(bench.gpu, mode, [(name, 100)], bench.seconds))
        for mode_name, values in done.items():
            bench.report.add(f"torch.{name}.{mode_name}", values, "steps/s")
        lost = [100 - 100 * ours / bare for ours, bare in zip(done[OURS.name], done[NATIVE.name], strict=True)]
        bench.report.add(f"torch.{name}.lost", lost, "%", against="goal", goal=1.0)
        rows.append([name, *(spread(values) for values in done.values()), spread(lost, 2)])
    head = ["", NATIVE.name, OURS.name, *(peer.name for peer in bench.peers), f"lost with {OURS.name}, %"]
    bench.report.table("PyTorch, steps a second", head, rows)
    for mode in (NATIVE, OURS, *bench.peers):
        small, large = await rates(bench.gpu, mode, [("train", 30), ("train", 70)], bench.seconds)
        share = 100 * small / (small + large)
        bench.report.add(f"torch.split.30.{mode.name}", share, "%", against="request", goal=30.0)
        bench.report.say(f"two trainings, 30 and 70, {mode.name}: {share:.2f}/{100 - share:.2f} of the steps")
    seen = await memory(bench.gpu, LIMIT)
    bench.report.say(
        f"a share of {LIMIT} bytes: PyTorch sees {seen['total']}, fills {seen['filled']}, then {seen['raised']}"
    )
    bench.report.add("torch.memory.total", float(str(seen["total"])), "bytes", against="limit", goal=float(LIMIT))


async def present(gpu: Gpu) -> bool:
    """Whether the interpreter that runs this has a PyTorch that sees the GPU."""
    try:
        code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
        await gpu.run(NATIVE, [sys.executable, "-c", code], seconds=90)
    except ProgramError:
        return False
    return True


async def memory(gpu: Gpu, limit: int) -> dict[str, object]:
    """What PyTorch sees of a share with so much memory, see `torch_work`."""
    output = (await gpu.run(OURS, python(PROGRAM, "memory", limit), seconds=120, memory_bytes=limit)).stdout
    seen: dict[str, object] = json.loads(output.splitlines()[-1])
    return seen


async def story(gpu: Gpu, name: str, *words: object, memory_bytes: int = 0) -> dict[str, Any]:
    """What a program of `torch_stories` tells, in a share of its own."""
    command = python(STORIES, name, *words)
    limits: dict[str, Any] = {"memory_bytes": memory_bytes} if memory_bytes else {}
    ended = await gpu.run(OURS, command, seconds=150, **limits)
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


async def rates(gpu: Gpu, mode: Mode, works: list[tuple[str, int]], seconds: float) -> list[float]:
    """Steps a second of programs that begin together, each with its request."""
    answers = await together(gpu, mode, [(PROGRAM, (name, seconds), percent) for name, percent in works], seconds)
    return [answer["rate"] for answer in answers]


async def together(
    gpu: Gpu, mode: Mode, works: Sequence[tuple[Path, tuple[object, ...], int]], seconds: float
) -> list[dict[str, float]]:
    """What programs tell at their end that begin together; works: program, its arguments and what it requests."""
    processes = [
        gpu.start(mode, python(program, *words), request=percent, limit=100 if mode.ours else percent)
        for program, words, percent in works
    ]
    try:
        for process in processes:
            await asyncio.to_thread(wait_for, process, "ready")
        said = await asyncio.gather(
            *(asyncio.to_thread(process.communicate, "\n", timeout=seconds + 60) for process in processes)
        )
    finally:
        await asyncio.to_thread(finish_all, processes)
    return [json.loads(output.splitlines()[-1]) for output, _ in said]
