"""A steady rate of pods, each deleted some seconds later, independent of the earlier ones.

The client retries only when it cannot reach the API server; every answer of the API server counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from burst import calls

from gpushare import contract

RATE = 20.0
LIFE_SECONDS = 12.0
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.2, 3.0  # doubled each time and randomised, as clients do
PATIENCE_SECONDS = 120.0
CALL_SECONDS = 40.0
STOP_SECONDS = 180.0
# Percent of one GPU, memory in GiB, weight.
SHARES = ((20, 8, 2), (40, 24, 3), (60, 40, 3), (100, 72, 2))
CROWDED = 16  # each sixteenth pod goes to the crowded node, and requests a whole GPU
FOREGROUND = {"gracePeriodSeconds": 0}  # no kubelet would confirm the deletion


@dataclass(frozen=True)
class Sent:
    """The result of one creation. `status` is the last answer's; `unreached` counts the attempts without a
    connection.
    """

    at: float
    seconds: float
    status: int
    message: str
    gated: bool
    unreached: int = 0
    cut: int = 0


@dataclass
class Counted:
    """The results of all creations."""

    sent: list[Sent] = field(default_factory=list)
    late: int = 0  # gated at first, placed before their deletion
    still_gated: int = 0

    @property
    def failed(self) -> list[Sent]:
        return [creation for creation in self.sent if creation.status != 201]

    @property
    def median_seconds(self) -> float:
        return statistics.median(creation.seconds for creation in self.sent) if self.sent else 0.0

    @property
    def longest_seconds(self) -> float:
        return max((creation.seconds for creation in self.sent), default=0.0)

    @property
    def unreached(self) -> int:
        """Return how many creations were retried, because the API server's address did not answer."""
        return sum(creation.unreached + creation.cut > 0 for creation in self.sent)

    @property
    def gated(self) -> int:
        return sum(creation.gated for creation in self.sent)


class Load:
    """A thread with its own event loop that creates and deletes pods."""

    def __init__(
        self,
        server: calls.Server,
        namespace: str,
        crowded: dict[str, str],
        roomy: dict[str, str],
        *,
        shares: bool = True,
        rate: float = RATE,
    ) -> None:
        self._server, self._pods = server, f"{server.url}/api/v1/namespaces/{namespace}/pods"
        self._crowded, self._roomy, self._shares, self._rate = crowded, roomy, shares, rate
        self._draw = random.Random(7)
        self._stopping, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")
        self.counted = Counted()
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Counted:
        """Stop creating pods, and wait until all are deleted."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise SystemExit(f"the load did not end in {STOP_SECONDS:.0f} s")
        if self.error is not None:
            raise self.error
        return self.counted

    async def _run(self) -> None:
        try:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._server.tls())
            timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                asyncio.TaskGroup() as all_,
            ):
                began = time.monotonic()
                for number in itertools.count():
                    await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
                    if self._stopping.is_set():
                        self._over.set()
                        return
                    all_.create_task(self._live(session, number))
        except BaseException as error:
            self.error = error

    async def _live(self, session: aiohttp.ClientSession, number: int) -> None:
        manifest = self._pod(number)
        sent = await self._create(session, manifest)
        self.counted.sent.append(sent)
        if sent.status != 201:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIFE_SECONDS):
                await self._over.wait()
        pod = await self._delete(session, manifest["metadata"]["name"])
        if sent.gated:
            placed = contract.ALLOCATION in (pod.get("metadata", {}).get("annotations") or {})
            self.counted.late += placed
            self.counted.still_gated += not placed

    async def _create(self, session: aiohttp.ClientSession, manifest: dict[str, Any]) -> Sent:
        at = began = time.monotonic()
        unreached = cut = 0
        while True:
            try:
                began = time.monotonic()
                async with session.post(self._pods, json=manifest) as answer:
                    body = await answer.json(content_type=None)
                    seconds = time.monotonic() - began
                    status = answer.status
                    if status == 409 and cut:
                        status = 201  # created by the attempt whose answer was lost
                    gates = (body.get("spec") or {}).get("schedulingGates") or []
                    return Sent(at, seconds, status, body.get("message", ""), bool(gates), unreached, cut)
            except aiohttp.ClientConnectorError:
                unreached += 1
            except (aiohttp.ClientError, ConnectionError):
                cut += 1  # the next attempt shows whether it was stored
            except TimeoutError:
                return Sent(at, time.monotonic() - began, 0, "no answer in time", False, unreached, cut)
            if time.monotonic() - at > PATIENCE_SECONDS:
                return Sent(at, time.monotonic() - at, 0, "the API server was not reachable", False, unreached, cut)
            pause = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** (unreached + cut))
            await asyncio.sleep(pause * self._draw.uniform(0.5, 1.0))

    async def _delete(self, session: aiohttp.ClientSession, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                async with session.delete(f"{self._pods}/{name}", json=FOREGROUND) as answer:
                    if answer.status in {200, 202, 404}:
                        document: dict[str, Any] = await answer.json(content_type=None)
                        return document
            await asyncio.sleep(RETRY_SECONDS)
        raise SystemExit(f"pod {name} could not be deleted")

    def _pod(self, number: int) -> dict[str, Any]:
        percent, gib, _ = self._draw.choices(SHARES, [weight for *_, weight in SHARES])[0]
        selector = self._roomy
        if not number % CROWDED:
            percent, gib, selector = 100, 72, self._crowded
        notes = {contract.REQUEST: f"{percent}%", contract.MEMORY: f"{gib}Gi"} if self._shares else {}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"steady-{number:05}", "annotations": notes},
            "spec": {"nodeSelector": selector, "containers": [{"name": "main", "image": "localhost/none"}]},
        }
