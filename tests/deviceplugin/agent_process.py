"""The agent as a process: `python -m deviceplugin`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from deviceplugin.modes import mode_checkpoint
from gpushare.config import config_choice
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Assignment
from tests import forked
from tests.deviceplugin import simulated, waiting


class Agent:
    """A running agent; `lines` is its log so far."""

    def __init__(self, process: forked.Process | subprocess.Popen[bytes], log: asyncio.StreamReader) -> None:
        self.process = process
        self._log = log
        self.lines: list[dict[str, Any]] = []
        self.other: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for line in self._log:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.other.append(line.decode())

    def said(self, message: str, **extra: object) -> bool:
        """Whether a log line has this message and these fields."""
        return any(line["msg"] == message and extra.items() <= line.items() for line in self.lines)

    async def until(self, message: str, **extra: object) -> None:
        """Wait for a log line."""
        with contextlib.suppress(TimeoutError):
            await waiting.until(lambda: self.said(message, **extra) or self._reading.done(), seconds=40)
        assert self.said(message, **extra), (message, extra, self.lines, self.other)

    async def ended(self) -> int:
        """Wait for the end; return the exit code."""
        async with asyncio.timeout(30):
            await self._reading
            return await asyncio.to_thread(self.process.wait, 30)

    async def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def get(self, path: str) -> tuple[int, str]:
        """Read from the probes' port."""
        await self.until("Serving")
        (port,) = [line["probe_port"] for line in self.lines if line["msg"] == "Serving"]
        return await self.ask(port, path)

    async def ask(self, port: int, path: str) -> tuple[int, str]:
        """Read from this port."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()


# Tells the kubelet of a sick GPU at once instead of after five seconds.
PROMPT = (
    "-c",
    "import sys; from deviceplugin import __main__; from deviceplugin.state import advertisement; "
    "advertisement.DECREASE_SECONDS = 0.1; sys.exit(__main__.main())",
)
# When it stops, it does not wait 15 seconds for pods that have a share and no devices.
HURRIED = (
    "-c",
    "import sys; from deviceplugin import __main__, agent; agent.MAX_DRAIN_SECONDS = 0.1; sys.exit(__main__.main())",
)


@contextlib.asynccontextmanager
async def running(
    node_name: str,
    directory: Path,
    *,
    kubeconfig: Path | None,
    gpus: Path,
    library: Path | None = None,
    more: tuple[str, ...] = (),
    program: tuple[str, ...] = ("-m", "deviceplugin"),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Agent]:
    """Yield an agent with all its files below `directory`, and kill it at the end if it still runs."""
    (directory / "kubelet").mkdir(exist_ok=True)
    made = directory / "libgpushare.so"
    made.write_bytes(b"\x7fELF")
    words = (
        *(*program, f"--node-name={node_name}"),
        *([] if kubeconfig is None else [f"--kubeconfig={kubeconfig}"]),
        *(f"--kubelet-directory={directory / 'kubelet'}", f"--root={directory / 'root'}"),
        *(f"--run-directory={directory / 'run'}", f"--library={library or made}"),
        f"--pod-resources-socket={directory / 'kubelet-holds.sock'}",
        f"--cdi-directory={directory / 'cdi'}",
        *("--probe-host=127.0.0.1", "--probe-port=0", *more),
    )
    variables = {**simulated.environment(gpus), **(environment or {})}
    reading, writing = os.pipe()
    log = asyncio.StreamReader()
    pipe = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(log), os.fdopen(reading, "rb")
    )
    process = forked.start("deviceplugin", words, environment=variables, errors=writing)
    os.close(writing)
    agent = Agent(process, log)
    try:
        yield agent
    finally:
        process.kill()
        await agent.ended()
        pipe[0].close()
        # pytest shows this if the test fails.
        sys.stderr.writelines([*(f"{line}\n" for line in agent.lines), *agent.other])


def has_served(directory: Path, gpus: Path) -> None:
    """Write the checkpoint of a previous agent. Without one, a first agent waits for its configuration."""
    assignments = dict.fromkeys(simulated.uuids(gpus), Assignment(Mode.FRACTIONAL))
    mode_checkpoint.write(
        directory / "root" / mode_checkpoint.NAME, mode_checkpoint.Checkpoint(config_choice.BUILT_IN, assignments)
    )
