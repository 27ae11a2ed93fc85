"""Measure a share's memory as frameworks see and fill it, and as NVML shows it.

Each framework has its own allocator and its own out-of-memory exception, and runs in a separate process. A missing or
failing framework becomes a row with its error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu import workers
from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.tenants import Gpu, ProgramError

LIMIT = 4 << 30
MIB = 1 << 20
ABSENT = ("ModuleNotFoundError", "FileNotFoundError")  # not installed
HELD = 1 << 30  # bytes, while asking NVML
FILL_SECONDS = 60.0  # JAX retries for twenty of these: a framework that hangs must not cost the others their rows
LAUNCH_SECONDS = 30.0
FILL, VIEW, STORIES = (f"bench.gpu.programs.{name}" for name in ("fill_frameworks", "nvml_view", "torch_stories"))


@dataclass(frozen=True, slots=True)
class Subject:
    """A way to fill a share: name in the table, framework, and environment variables."""

    label: str
    framework: str
    variables: tuple[str, ...] = ()


def _configured(setting: str) -> tuple[str, ...]:
    """Return PyTorch's allocator setting under both names: the one until release 2.9 and the later one."""
    return (f"PYTORCH_CUDA_ALLOC_CONF={setting}", f"PYTORCH_ALLOC_CONF={setting}")


ALLOCATORS = (
    Subject("PyTorch", "torch"),
    Subject("PyTorch, expandable segments", "torch", _configured("expandable_segments:True")),
    Subject("PyTorch, cudaMallocAsync", "torch", _configured("backend:cudaMallocAsync")),
)
OTHERS = (
    Subject("JAX", "jax"),
    Subject(
        "JAX, all of it, not preallocated",
        "jax",
        ("XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_PYTHON_CLIENT_MEM_FRACTION=1.0"),
    ),
    Subject("CuPy", "cupy"),
    Subject("Triton", "triton"),
    Subject("numba-cuda", "numba"),
    Subject("cuda.bindings", "cuda.bindings"),
    Subject("cuda.core", "cuda.core"),
)


async def torch_memory(bench: Bench) -> None:
    """Fill a share twice with each of PyTorch's three allocators; report sizes and the exception."""
    await _filling(bench, "PyTorch", ALLOCATORS, (OURS, *bench.peers))


async def framework_memory(bench: Bench) -> None:
    """Do the same with other frameworks, and measure a launch."""
    await _filling(bench, "frameworks", OTHERS, (OURS,))


async def _filling(bench: Bench, title: str, subjects: Sequence[Subject], modes: Sequence[Mode]) -> None:
    limit = min(LIMIT, bench.gpu.machine.memory_bytes // 8)
    rows: list[list[str]] = []
    head = ["", "total, MiB", "free", "filled", "again", "refused by", f"launch us, {NATIVE.name}", "in a share"]
    bench.report.table(f"A share of {limit / MIB:.0f} MiB, filled by {title}", head, rows)
    natives = await _fill_all(bench.gpu, NATIVE, subjects, 0)
    for mode in modes:
        for subject, native, seen in zip(
            subjects, natives, await _fill_all(bench.gpu, mode, subjects, limit), strict=True
        ):
            name = f"memory.{_key(subject)}.{mode.name}"
            label = subject.label if len(modes) == 1 else f"{subject.label}, {mode.name}"
            if isinstance(seen, Exception):
                rows.append([label, *[""] * 4, workers.failed(bench.report, name, seen), "", ""])
                continue
            if "missing" in seen:
                rows.append([label, *[""] * 4, f"not installed: {seen['missing']}", "", ""])
                continue
            filled = seen["filled"]
            bench.report.add(f"{name}.total", seen["total"], "bytes", against="limit", goal=float(limit))
            bench.report.add(f"{name}.filled", filled, "bytes", against="limit", goal=float(limit))
            amounts = [f"{amount / MIB:.0f}" for amount in (seen["total"], seen["free"], *filled)]
            how = next((text for texts in seen["raised"] for text in texts), "not refused")
            launches = []
            for who, document in ((NATIVE, native), (mode, seen)):
                took = document.get("launch_us") if isinstance(document, dict) else None
                launches.append(f"{took:.2f}" if took is not None else "?")
                if took is not None and (who is not NATIVE or mode is modes[0]):
                    bench.report.add(f"launch.{_key(subject)}.{who.name}", took, "us")
            rows.append([label, *amounts, _short(how), *launches])
            for key in ("allocator", "do_bench_ms", "right", "pool", "error"):
                if key in seen:
                    bench.report.say(f"- {label}: {key} {seen[key]}")


async def _fill_all(gpu: Gpu, mode: Mode, subjects: Sequence[Subject], limit: int) -> list[dict[str, Any] | Exception]:
    """Fill one share per subject, all at the same time; then measure launches, one subject at a time."""
    amounts = {"memory_bytes": limit} if limit else {}
    running = []
    try:
        for subject in subjects:
            variables = subject.variables
            if mode is NATIVE and subject.framework == "jax":
                variables = ("XLA_PYTHON_CLIENT_PREALLOCATE=false",)  # not three quarters of the GPU
            command = [sys.executable, "-m", FILL, subject.framework, str(limit), *variables]
            running.append(workers.Worker(gpu.start(mode, command, None, **amounts), subject.label))
        answers = await asyncio.gather(*map(_filled, running))
        for worker, answer in zip(running, answers, strict=True):
            if isinstance(answer, dict) and "missing" not in answer:
                try:
                    answer |= await worker.ask({}, "launched", LAUNCH_SECONDS)
                except workers.ROW_ERRORS as error:
                    answer["error"] = str(error)
        return answers
    finally:
        await asyncio.gather(*(worker.close() for worker in running))


async def _filled(worker: workers.Worker) -> dict[str, Any] | Exception:
    try:
        return await worker.answer("filled", FILL_SECONDS)
    except workers.ROW_ERRORS as error:
        return error


def _key(subject: Subject) -> str:
    return subject.label.replace(", ", ".").replace(" ", "_")


def _short(text: str) -> str:
    return text.split("(")[0].strip()[:48]


async def nvml_in_share(bench: Bench) -> None:
    """Compare the sizes that NVML and the driver report to a program that holds a GiB of its share."""
    limit = min(LIMIT, bench.gpu.machine.memory_bytes // 4)
    rows: list[list[str]] = []
    head = ["", "asked by", "total, MiB", "used", "free", "processes"]
    bench.report.table(f"Memory as seen by a program that holds {HELD / MIB:.0f} of {limit / MIB:.0f} MiB", head, rows)
    for mode in (NATIVE, OURS, *bench.peers):
        try:
            command = [sys.executable, "-m", VIEW, str(HELD)]
            ended = await bench.gpu.run(mode, command, seconds=workers.ready_seconds(mode), memory_bytes=limit)
            seen: dict[str, dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
        except workers.ROW_ERRORS as error:
            rows.append([mode.name, workers.failed(bench.report, f"nvml.{mode.name}", error), *[""] * 4])
            continue
        for way, answer in seen.items():
            if "error" in answer:
                rows.append([mode.name, f"{way}: {answer['error']}"[:100], *[""] * 4])
                if not answer["error"].startswith(ABSENT):
                    workers.failed(bench.report, f"nvml.{way}.{mode.name}", ProgramError(answer["error"]))
                continue
            amounts = [f"{answer[key] / MIB:.0f}" for key in ("total", "used", "free")]
            rows.append([mode.name, way, *amounts, str(answer.get("processes", ""))])
            if mode.ours:
                bench.report.add(f"nvml.{way}.total", answer["total"], "bytes", against="limit", goal=float(limit))


async def story(gpu: Gpu, name: str, *words: object, memory_bytes: int = 0) -> dict[str, Any]:
    """Run a program of `torch_stories` in a new share and return its answer. Raises ProgramError."""
    limits: dict[str, Any] = {"memory_bytes": memory_bytes} if memory_bytes else {}
    command = [sys.executable, "-m", STORIES, name, *map(str, words)]
    ended = await gpu.run(OURS, command, seconds=150, **limits)
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


async def filled(gpu: Gpu, subject: Subject, limit: int) -> dict[str, Any]:
    """Fill a share of `limit` bytes with one framework and return its answer. Raises ProgramError."""
    (answer,) = await _fill_all(gpu, OURS, [subject], limit)
    if isinstance(answer, Exception):
        raise answer
    if "missing" in answer:
        raise ProgramError(answer["missing"])
    return answer
