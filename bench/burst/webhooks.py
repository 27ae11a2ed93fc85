"""Webhooks as deployed: each in a separate process, with only its ServiceAccount's permissions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpushare import contract

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
PROBE_SECONDS = 30.0  # a busy replica may take long to answer


class Replica:
    def __init__(
        self,
        directory: Path,
        kubeconfig: Path,
        url: str,
        port: int,
        *,
        wrapper: tuple[str, ...],
        environment: Mapping[str, str],
    ) -> None:
        directory.mkdir(parents=True)
        self.log = directory / "log"
        flags = (
            "--host=127.0.0.1",
            "--probe-host=127.0.0.1",
            f"--port={port}",
            "--probe-port=0",
            f"--certificate-directory={directory / 'certificates'}",
            f"--kubeconfig={kubeconfig}",
            f"--url={url}",
            f"--instance={directory.name}",
        )
        variables = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"} | dict(environment)
        self._command, self._environment = (sys.executable, *wrapper, "-m", "webhook", *flags), variables
        self._start()

    def _start(self, *more: str) -> None:
        began = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*self._command, *more], cwd=REPOSITORY, env=self._environment, stderr=log)
        until(lambda: bool(self.logged("Serving")), f"{self.log} does not log Serving")
        serving = self.logged("Serving")[0]
        self.port, self.probe_port = serving["port"], serving["probe_port"]
        self._began = began
        self.ready_seconds = 0.0  # from the start until it was ready

    def restart(self) -> None:
        """End it as a rollout does, and restart it at the same address; return once it is ready."""
        self.stop()
        self._start(f"--port={self.port}")
        until(self.ready, f"{self.log}: the replica did not become ready again")

    def ready(self) -> bool:
        try:
            self._probe("/readyz")
        except (urllib.error.HTTPError, OSError):
            return False
        self.ready_seconds = self.ready_seconds or time.monotonic() - self._began
        return True

    def metric(self, pattern: str) -> float:
        """Return the sum of all samples whose name with labels matches."""
        lines = self._probe("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(pattern, line))

    def logged(self, message: str) -> list[dict[str, Any]]:
        lines = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):  # an incomplete line
                lines.append(json.loads(line))
        return [line for line in lines if line.get("msg") == message]

    def stop(self) -> None:
        if self.process.poll() is not None:
            raise SystemExit(f"a webhook has ended by itself:\n{self.log.read_text()[-4000:]}")
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def _probe(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}{path}", timeout=PROBE_SECONDS) as answer:
            return str(answer.read().decode())


@contextlib.contextmanager
def running(
    count: int,
    directory: Path,
    kubeconfig: Path,
    *,
    asked: int | None = None,
    wrapper: tuple[str, ...] = (),
    environment: Mapping[str, str] = types.MappingProxyType({}),
) -> Iterator[tuple[list[Replica], int | None]]:
    """Run ready replicas, one of them elected; yield them, and the pid of the load balancer if there is one.

    asked: how many of them, including the leader, the API server calls; the others only follow. None for all.
    """
    started: list[Replica] = []
    with contextlib.ExitStack() as stack:
        front = stack.enter_context(_balanced()) if count > 1 else None
        port = front.port if front else _free_port()
        url = f"https://127.0.0.1:{port}{contract.WEBHOOK_PATH}"
        for number in range(count):
            where = directory / f"replica-{number}"
            own = Replica(where, kubeconfig, url, 0 if front else port, wrapper=wrapper, environment=environment)
            stack.callback(own.stop)
            started.append(own)
            until(own.ready, f"{own.log}: the replica did not become ready")
        if front:
            front.behind([replica.port for replica in started[:asked]])
        until(
            lambda: sum(replica.metric("gpushare_placer_leads ") for replica in started) == 1, "no placer was elected"
        )
        yield started, front.pid if front else None


def until(condition: Callable[[], bool], otherwise: str, *, seconds: float = START_SECONDS) -> None:
    """Wait until the condition holds. An OSError counts as false. Raises SystemExit at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        unanswered: OSError | None = None
        try:
            if condition():
                return
        except OSError as error:
            unanswered = error
        if time.monotonic() > deadline:
            raise SystemExit(f"{otherwise} in {seconds:.0f} s{f': {unanswered}' if unanswered else ''}")
        time.sleep(0.05)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class _Front:
    """A load balancer like a Service: each connection goes to the next replica."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_relay, args=(theirs,), daemon=True)
        self._process.start()
        self.port = int(self._ours.recv())
        self.pid = int(self._process.pid or 0)

    def behind(self, ports: list[int]) -> None:
        self._ours.send(ports)

    def stop(self) -> None:
        self._process.terminate()
        self._process.join(10)


@contextlib.contextmanager
def _balanced() -> Iterator[_Front]:
    front = _Front()
    try:
        yield front
    finally:
        front.stop()


def _relay(pipe: Any) -> None:
    asyncio.run(_relaying(pipe))


async def _relaying(pipe: Any) -> None:
    loop = asyncio.get_running_loop()
    ports: list[int] = []
    turn = itertools.count()
    tasks: set[asyncio.Task[Any]] = set()

    class Side(asyncio.Protocol):
        """One half of a connection; data that arrives before the other half is buffered."""

        def __init__(self, other: Side | None) -> None:
            self.other, self.early = other, b""
            self.transport: asyncio.Transport | None = None

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            if self.other is not None:
                self.other.other = self
                transport.write(self.other.early)
            elif ports:
                opening = loop.create_task(open_to(self))
                tasks.add(opening)
                opening.add_done_callback(tasks.discard)
            else:
                transport.close()

        def data_received(self, data: bytes) -> None:
            if self.other is None or self.other.transport is None:
                self.early += data
            else:
                self.other.transport.write(data)

        def connection_lost(self, _error: Exception | None) -> None:
            if self.other is not None and self.other.transport is not None:
                self.other.transport.close()

    async def open_to(side: Side) -> None:
        """Connect to the next replica that accepts connections: a Service lists only ready ones."""
        for _ in ports:
            with contextlib.suppress(ConnectionError):
                await loop.create_connection(lambda: Side(side), "127.0.0.1", ports[next(turn) % len(ports)])
                return
        if side.transport is not None:
            side.transport.close()

    server = await loop.create_server(lambda: Side(None), "127.0.0.1", 0)
    ended = asyncio.Event()

    def hear() -> None:
        try:
            ports.extend(pipe.recv())
        except EOFError:  # the parent process has ended
            loop.remove_reader(pipe.fileno())
            ended.set()

    loop.add_reader(pipe.fileno(), hear)
    pipe.send(server.sockets[0].getsockname()[1])
    await ended.wait()
    server.close()
