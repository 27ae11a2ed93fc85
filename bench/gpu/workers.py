"""Drive `programs/torch_worker`: processes that run several PyTorch workloads in a share, one after another.

A worker that hangs is killed after a timeout. The error of one that exits has the end of its stderr.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.gpu.modes import Mode
from bench.gpu.report import Report
from bench.gpu.tenants import Gpu, ProgramError

PROGRAM = "bench.gpu.programs.torch_worker"
READY_SECONDS = 120.0  # importing PyTorch for the first time reads gigabytes
PEER_READY_SECONDS = 45.0
PREPARE_SECONDS = 90.0
OVERTIME_SECONDS = 30.0
MEMORY_BYTES = 16 << 30
WARM_SECONDS = 0.3
MISSING = "No module named 'torch'"
T = TypeVar("T")

# Failures of one row of a table: the row shows the error, and the next row follows.
ROW_ERRORS = (ProgramError, subprocess.TimeoutExpired, OSError, ValueError, LookupError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Measured:
    """A worker's result: units a second, milliseconds between pieces, and the start of the longest."""

    rate: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    longest_at: float
    cpu_seconds: float
    seconds: float
    pieces: int
    failures: int = 0
    failure: str = ""


class Worker:
    """A running worker. Create it inside a running event loop and close it."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name
        self.facts: dict[str, Any] = {}
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._said: collections.deque[str] = collections.deque(maxlen=30)
        loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._read, args=(loop,), daemon=True),
            threading.Thread(target=self._keep, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            for line in self.process.stdout:
                loop.call_soon_threadsafe(self._lines.put_nowait, line)
            loop.call_soon_threadsafe(self._lines.put_nowait, "")

    def _keep(self) -> None:
        assert self.process.stderr is not None
        self._said.extend(self.process.stderr)

    async def ready(self, seconds: float) -> None:
        """Wait until the worker is ready. Raises ProgramError."""
        self.facts = await self.answer("ready", seconds)

    async def prepare(self, workload: str, requests: int = 1) -> dict[str, Any]:
        """Build a workload, replacing the previous one."""
        return await self.ask({"prepare": workload, "requests": requests}, "prepared", PREPARE_SECONDS)

    async def run(self, seconds: float, at: float, warm: float = WARM_SECONDS) -> Measured:
        """Start at `at`, and measure for `seconds`."""
        command = {"run": seconds, "at": at, "warm": warm}
        return Measured(**await self.ask(command, "done", seconds + warm + OVERTIME_SECONDS))

    async def drop(self) -> None:
        """Release the workload's memory."""
        await self.ask({"drop": True}, "dropped", OVERTIME_SECONDS)

    async def ask(self, command: Mapping[str, object], word: str, seconds: float) -> dict[str, Any]:
        """Send a command and return the answer. Raises ProgramError."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise ProgramError(f"{self.name} has ended: {self.said()}") from error
        return await self.answer(word, seconds)

    async def answer(self, word: str, seconds: float) -> dict[str, Any]:
        """Wait for a line that begins with `word`, and return its object. Raises ProgramError."""
        try:
            async with asyncio.timeout(seconds):
                line = await self._lines.get()
                while line and line.partition(" ")[0] not in (word, "failed"):  # printed by a library
                    line = await self._lines.get()
        except TimeoutError as error:
            self.process.kill()
            raise ProgramError(f"{self.name}: not {word} after {seconds:g} seconds: {self.said()}") from error
        if not line:
            code = await asyncio.to_thread(self.process.wait)
            await asyncio.to_thread(self._threads[1].join, 5)
            said = self.said()  # last line first: reports shorten errors
            raise ProgramError(f"{self.name} ended with {code}: {last_line(said)}\n{said}")
        said, _, document = line.partition(" ")
        answer: dict[str, Any] = json.loads(document)
        if said == "failed":
            raise ProgramError(f"{self.name}: {answer['error']}")
        return answer

    def said(self) -> str:
        """Return the end of the worker's stderr."""
        return "".join(list(self._said))[-2000:].strip()

    async def close(self) -> None:
        """Kill the worker, with the children of its process group if it has its own."""
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(self.process.pid) == self.process.pid:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for thread, pipe in zip(self._threads, (self.process.stdout, self.process.stderr), strict=True):
            thread.join(2)
            if pipe is not None and not thread.is_alive():  # a child process may still have it open
                pipe.close()
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()


@contextlib.asynccontextmanager
async def opened(
    gpu: Gpu, *wanted: tuple[Mode, int], shares: Sequence[Mapping[str, str]] = ()
) -> AsyncIterator[list[Worker]]:
    """Start workers at the same time, each with a mode and a request in percent, or in the given shares.

    Where requests are not kept, a request becomes a limit.
    """
    memory_bytes = min(MEMORY_BYTES, gpu.machine.memory_bytes // 2)
    workers: list[Worker] = []
    try:
        for number, (mode, percent) in enumerate(wanted):
            amounts = {
                "request": percent,
                "limit": 100 if mode.keeps_requests else percent,
                "memory_bytes": memory_bytes,
            }
            share = shares[number] if shares else None
            command = [sys.executable, "-m", PROGRAM]
            workers.append(Worker(gpu.start(mode, command, share, **amounts), f"PyTorch, {mode.name}"))
        seconds = [ready_seconds(mode) for mode, _ in wanted]
        await gathered([worker.ready(most) for worker, most in zip(workers, seconds, strict=True)])
        yield workers
    finally:
        await asyncio.gather(*(worker.close() for worker in workers))


def ready_seconds(mode: Mode) -> float:
    """Return the timeout of an import: shorter for peers, which may hang, and whose files are cached by then."""
    return READY_SECONDS if mode.ours or not (mode.preload or mode.variables) else PEER_READY_SECONDS


def in_a_line(error: BaseException) -> str:
    """Return an error's last line, where Python prints the exception, short enough for a table."""
    return (last_line(str(error)) or type(error).__name__)[:80]


def last_line(text: str) -> str:
    """Return the last line that is not empty, or an empty text."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def failed(report: Report, name: str, error: BaseException) -> str:
    """Record a failed row, unless PyTorch is not installed; return the text for the row."""
    if MISSING not in str(error):
        report.fail(name, error)
    return in_a_line(error)


async def prepare(workers: Sequence[Worker], workload: str, requests: int = 1) -> None:
    """Build the same workload in all workers, at the same time."""
    await gathered([worker.prepare(workload, requests) for worker in workers])


async def run(workers: Sequence[Worker], seconds: float, warm: float = WARM_SECONDS) -> list[Measured]:
    """Run all workers together and return their results."""
    at = time.monotonic() + 0.05
    return await gathered([worker.run(seconds, at, warm) for worker in workers])


async def drop(workers: Sequence[Worker]) -> None:
    """Release the memory of all workers."""
    await gathered([worker.drop() for worker in workers])


async def gathered(asked: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Wait for all, even if one fails, so that no answer is left over for the next command. Raises the first error."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]
