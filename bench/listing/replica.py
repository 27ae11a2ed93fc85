"""A webhook replica's copy of the cluster in a separate process; prints one JSON object a stage."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

import webhook.cluster_process  # noqa: F401 (as much code as a replica has)
from gpushare.cluster import api_client, api_connection, transport
from gpushare.daemon import lifecycle
from webhook.metrics import Metrics
from webhook.store.api_store import ApiStore

PULSE_SECONDS = 0.005
Kept = TypeVar("Kept")
MIB = 2**20


class Whole(api_client.ApiClient):
    """The baseline: a client that decodes a list in one piece before it trims the objects."""

    async def list(
        self, path: str, query: api_client.Query | None = None, *, keep: Callable[[api_client.Json], Kept]
    ) -> api_client.ObjectList[Kept]:
        request = transport.HttpRequest("GET", path, 600.0, query or {})
        async with self._transport.open(request) as answer:
            listed = json.loads(await answer.read())
        kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        whole = [{**kind, **item} for item in listed["items"]]
        return api_client.ObjectList([keep(item) for item in whole], listed["metadata"]["resourceVersion"])


class Stage:
    """The memory and the event loop's stalls during one stage."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stall_seconds = 0.0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        _forget_peak()
        beat = asyncio.create_task(self._beat())
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        beat.cancel()
        stage: dict[str, Any] = {
            "stage": self._name,
            "seconds": round(seconds, 2),
            "peak_mib": round(_status("VmHWM") / MIB),
            "left_mib": round(_status("VmRSS") / MIB),
            "stall_ms": round(self._stall_seconds * 1000),
        }
        print(json.dumps(stage), flush=True)

    async def _beat(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(PULSE_SECONDS)
            self._stall_seconds = max(self._stall_seconds, time.perf_counter() - began - PULSE_SECONDS)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024


async def main(server: str, *, is_whole: bool) -> None:
    access = api_connection.Credentials(server=server)

    async def source() -> api_connection.Credentials:
        return access

    opened = transport.Transport(api_connection.ApiConnection(source, access), user_agent="bench")
    api = Whole(opened) if is_whole else api_client.ApiClient(opened)
    kept = ApiStore(api, Metrics())
    await asyncio.sleep(0.2)
    async with Stage("nothing yet").watched():
        await asyncio.sleep(0.1)
    tasks: list[asyncio.Task[Any]] = []
    async with Stage("start").watched():
        tasks += [
            asyncio.create_task(work) for work in (kept.run(), lifecycle.freeze_objects_when_ready(kept.synced()))
        ]
        await kept.synced()
        await asyncio.sleep(0.5)
    for name, changed in (("listed again", "no"), ("listed again, all changed", "yes")):
        async with Stage(name).watched():
            before = kept._occupancy._pods.listed_at
            async with aiohttp.ClientSession() as session:
                await session.post(f"{server}/expire", params={"changed": changed})
            while kept._occupancy._pods.listed_at == before or not kept._occupancy._pods.is_watching:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await opened.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("--whole", action="store_true")
    asked = parser.parse_args()
    asyncio.run(main(asked.server, is_whole=asked.whole))
