"""The network between one process and the simulated API server: each message waits until the schedule delivers it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from gpushare.cluster import api_client, api_errors, transport
from tests.webhook.laws.simulated_api import Happened, SimulatedApi, parse, selects


@dataclasses.dataclass(slots=True, eq=False)
class Message:
    """A request in flight or, once it was carried out, its answer."""

    sender: str
    method: str
    path: str
    query: Mapping[str, Any]
    body: Any
    content_type: str
    sent_at: float
    waiter: asyncio.Future[dict[str, Any]]
    outcome: dict[str, Any] | api_errors.ClusterError | None = None
    held_until: float = 0.0

    @property
    def is_answer(self) -> bool:
        return self.outcome is not None

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    def __str__(self) -> str:
        way = "answer to" if self.is_answer else "request of"
        return f"{way} {self.sender}: {self.method} {self.path}"


@dataclasses.dataclass(slots=True, eq=False)
class Watch:
    """A watch: how far its reader is, and until when it delivers nothing although it is open."""

    sender: str
    collection: str
    told: int
    events: asyncio.Queue[dict[str, Any] | api_errors.ClusterError]
    query: Mapping[str, Any]
    shown: set[tuple[str, str]]  # what its reader knows of, by namespace and name
    silent_until: float = 0.0

    def translated(self, entry: Happened) -> dict[str, Any] | None:
        """Return the event that the reader gets: an object that its selectors no longer match is deleted for it."""
        metadata = entry.object["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        known, shows = key in self.shown, entry.type != "DELETED" and selects(self.query, entry.object)
        (self.shown.add if shows else self.shown.discard)(key)
        if not known and not shows:
            return None
        kind = "MODIFIED" if known and shows else "ADDED" if shows else "DELETED"
        return {"type": kind, "object": copy.deepcopy(entry.object)}


class Network:
    """All messages in flight."""

    def __init__(self, api: SimulatedApi) -> None:
        self.api = api
        self.messages: list[Message] = []
        self.watches: list[Watch] = []

    # --- what the schedule does --------------------------------------------------------------------------------------

    def forward(self, message: Message) -> None:
        """Deliver a message one step: to the API server, or back."""
        if message.is_answer:
            self.messages.remove(message)
            _settle(message.waiter, message.outcome)
            return
        try:
            # By JSON, as on a real wire: nothing is shared by accident.
            body = json.loads(json.dumps(message.body))
            message.outcome = self.api.call(message.method, message.path, message.query, body, message.content_type)
        except api_errors.ClusterError as error:
            message.outcome = error

    def lose(self, message: Message) -> None:
        """Drop a request or an answer; the client cannot tell which."""
        self.messages.remove(message)
        _settle(message.waiter, api_errors.Unavailable(f"{message}: connection reset"))

    def pending_events(self, watch: Watch) -> int:
        return sum(1 for _ in self.api.since(watch.collection, watch.told))

    def tell(self, watch: Watch, count: int) -> None:
        """Deliver the next `count` events of a watch, in order."""
        for entry in list(self.api.since(watch.collection, watch.told))[:count]:
            event = watch.translated(entry)
            if event is not None:
                watch.events.put_nowait(event)
            watch.told = entry.version

    def end(self, watch: Watch, error: api_errors.ClusterError) -> None:
        self.watches.remove(watch)
        watch.events.put_nowait(error)

    def cut_off(self, sender: str) -> None:
        """End a process; messages that it has sent may still arrive."""
        self.watches = [watch for watch in self.watches if watch.sender != sender]


class SimulatedClient(api_client.ApiClient):
    """The daemons' own client, with the network in place of HTTP. seen_at: version of the API server's cache that
    serves lists.
    """

    def __init__(self, network: Network, sender: str) -> None:
        self._network = network
        self._sender = sender
        self.seen_at = 0
        self.dead = False
        self.answers = transport.Answers()

    async def _call(
        self,
        method: str,
        path: str,
        query: api_client.Query,
        *,
        body: api_client.Body | None = None,
        content_type: str = "application/json",
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        if self.dead:
            raise api_errors.Unavailable("this process is no more")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[dict[str, Any]] = loop.create_future()
        asked = {**query, "seenAt": self.seen_at}
        message = Message(self._sender, method, path, asked, body, content_type, loop.time(), waiter)
        self._network.messages.append(message)
        try:
            async with asyncio.timeout(timeout_seconds or api_client.CALL_SECONDS):
                answer = await waiter
                self.answers.add()
                return answer
        except TimeoutError as error:
            raise api_errors.Unavailable(f"{method} {path}: the API server did not answer in time") from error

    async def list(
        self, path: str, query: api_client.Query | None = None, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        listed = await self._call("GET", path, query or {}, timeout_seconds=api_client.LIST_SECONDS)
        kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        return api_client.ObjectList(
            [keep({**kind, **item}) for item in listed["items"]], listed["metadata"]["resourceVersion"]
        )

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, query: api_client.Query | None = None, **_: Any
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        version = int((query or {}).get("resourceVersion", 0))
        collection = parse(path)[0]
        before = [item for item in self._network.api.snapshot(collection, version) if selects(query or {}, item)]
        shown = {(item["metadata"].get("namespace", ""), item["metadata"]["name"]) for item in before}
        watch = Watch(self._sender, collection, version, asyncio.Queue(), dict(query or {}), shown)
        self._network.watches.append(watch)

        async def events() -> AsyncIterator[dict[str, Any]]:
            while True:
                event = await watch.events.get()
                if isinstance(event, api_errors.ClusterError):
                    raise event
                yield event

        try:
            yield events()
        finally:
            if watch in self._network.watches:
                self._network.watches.remove(watch)


def _settle(waiter: asyncio.Future[dict[str, Any]], outcome: dict[str, Any] | api_errors.ClusterError | None) -> None:
    if waiter.done():
        return
    if isinstance(outcome, dict):
        waiter.set_result(outcome)
    else:
        waiter.set_exception(outcome or api_errors.Unavailable("no answer"))
