"""The webhooks' only route to the API server: a proxy that can answer in its place, delay calls or drop packets.

The webhooks' side is plain HTTP on loopback, the other side is the API server's TLS. The token identifies the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from burst import calls

KEPT = ("Authorization", "Content-Type", "Accept", "User-Agent")
START_SECONDS = 10.0
REASONS = {429: "TooManyRequests", 500: "InternalError"}


@dataclass(frozen=True)
class Fault:
    """status: returned instead of the API server's answer, 0 for none; delay_seconds: before each call."""

    status: int = 0
    retry_after_seconds: int = 0
    delay_seconds: float = 0.0


class Proxy:
    """The proxy. `fault` may change while it serves."""

    def __init__(self, server: calls.Server) -> None:
        self._server = server
        self.fault = Fault()
        self.port = 0
        self._streams: set[asyncio.Task[object]] = set()
        self._loop = asyncio.new_event_loop()
        self._serving, self._stop = threading.Event(), asyncio.Event()

    def set(self, fault: Fault) -> None:
        """Set the fault, and cut open connections, watches included."""
        self.fault = fault

        def cut() -> None:
            for task in self._streams:
                task.cancel()

        self._loop.call_soon_threadsafe(cut)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        fault = self.fault
        await asyncio.sleep(fault.delay_seconds)
        if fault.status:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.status}
            words = {"reason": REASONS[fault.status], "message": "a bad day"}
            headers = {"Retry-After": str(fault.retry_after_seconds)} if fault.retry_after_seconds else {}
            return web.json_response({**status, **words}, status=fault.status, headers=headers)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            headers = {key: value for key, value in request.headers.items() if key in KEPT}
            headers["Accept-Encoding"] = "identity"  # the answer is passed on unchanged
            async with self._session.request(
                request.method, self._server.url + request.raw_path, data=await request.read(), headers=headers
            ) as upstream:
                kept = {
                    key: upstream.headers[key] for key in ("Content-Type", "Retry-After") if key in upstream.headers
                }
                answer = web.StreamResponse(status=upstream.status, headers=kept)
                await answer.prepare(request)
                async for piece in upstream.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer
        finally:
            self._streams.discard(task)

    async def _serve(self) -> None:
        # No client certificate: the token authenticates.
        trusted = ssl.create_default_context(cafile=str(self._server.ca))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trusted),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._serving.set()
        await self._stop.wait()
        await runner.cleanup()
        await self._session.close()

    @contextlib.contextmanager
    def nowhere(self) -> Iterator[None]:
        """Drop every packet in both directions without an error, as a network partition does."""
        rules = [
            ("INPUT", "-i", "lo", "-p", "tcp", end, str(self.port), "-j", "DROP") for end in ("--dport", "--sport")
        ]
        for rule in rules:
            subprocess.run(["iptables", "-I", *rule], check=True)
        try:
            yield
        finally:
            for rule in rules:
                subprocess.run(["iptables", "-D", *rule], check=True)

    def kubeconfig(self, kubeconfig: Path, target: Path) -> Path:
        """Write a copy of a ServiceAccount's kubeconfig that points to the proxy."""
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        target.write_text(yaml.safe_dump(config))
        return target

    def run(self) -> None:
        logging.getLogger("aiohttp.server").disabled = True  # closed client connections are expected
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels the remaining tasks
            runner.run(self._serve())


@contextlib.contextmanager
def running(server: calls.Server) -> Iterator[Proxy]:
    made = Proxy(server)
    thread = threading.Thread(target=made.run, name="proxy", daemon=True)
    thread.start()
    if not made._serving.wait(START_SECONDS):
        raise SystemExit("the proxy to the API server did not start")
    try:
        yield made
    finally:
        made._loop.call_soon_threadsafe(made._stop.set)
        thread.join(START_SECONDS)
