"""Raw JSON to and from the API server: paths in, plain dicts out.

Every call has a time limit. The client itself retries only calls that certainly had no effect: a call rejected with 401
(see `transport`), and, a few times, a GET whose connection broke. All other retries are up to the caller, who knows
whether they are safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import aiohttp

from gpushare.cluster import api_connection, api_errors, items, transport

logger = logging.getLogger(__name__)

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

CALL_SECONDS: Final = 30.0
LIST_SECONDS: Final = 60.0
WATCH_SECONDS: Final = (290, 580)  # sent to the server, whose own default is 30 to 60 minutes
WATCH_GRACE_SECONDS: Final = 15.0
PAGE_ITEMS: Final = 500
GET_TRIES: Final = 3
GET_PAUSE_SECONDS: Final = 0.05
MAX_EVENT_BYTES: Final = 64 << 20  # etcd rejects objects of more than a few MiB
_VERSION_KEYS: Final = frozenset({"resourceVersion", "resourceVersionMatch"})

Query = transport.Query
Body = transport.Body
Json = dict[str, Any]
Answer = TypeVar("Answer")
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[Kept]):
    """A collection at one moment: what `keep` returned for each object, and the version to start a watch from."""

    items: list[Kept]
    resource_version: str


@dataclass(frozen=True, slots=True)
class _Page(Generic[Kept]):
    """A page of a list. rest: the continue token for the next page; "" after the last."""

    items: list[Kept]
    resource_version: str
    rest: str


class _Broken(api_errors.Unavailable):
    """A list whose transfer began, and then broke off or timed out."""


def whole(item: Json) -> Json:
    """Keep all of an object."""
    return item


@contextlib.asynccontextmanager
async def connect(kubeconfig: str | None = None, *, component: str = "") -> AsyncIterator[ApiClient]:
    """Yield a client for the cluster that `kubeconfig` names; for None see `api_connection.find`.

    component: identifies us in the API server's audit log, and is our field manager: `gpushare-COMPONENT`.

    Raises ClusterError if there is no usable configuration. It does not call the API server yet.
    """
    user_agent = f"gpushare-{component}" if component else "gpushare"
    opened = transport.Transport(await api_connection.find(kubeconfig), user_agent=user_agent)
    try:
        yield ApiClient(opened)
    finally:
        await opened.close()


class ApiClient:
    """Calls to one API server, made by `connect`. Every method raises the errors of `api_errors` only."""

    def __init__(self, opened: transport.Transport) -> None:
        self._transport = opened

    def time(self) -> float:
        """Return Unix seconds by the API server's clock, for the ages of objects; see `transport`."""
        return self._transport.time()

    @property
    def answers(self) -> transport.Answers:
        """The counter of answers from the API server, to any caller."""
        return self._transport.answers

    async def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """Return the JSON object at `path`."""
        return await self._call("GET", path, query or {})

    async def list(self, path: str, query: Query | None = None, *, keep: Callable[[Json], Kept]) -> ObjectList[Kept]:
        """Return a collection.

        keep: called with each object (with apiVersion and kind) as it arrives; its results are returned. Only a few
        objects are in memory at a time, however long the list is. After a connection breaks, it may be called again for
        the same object.

        Raises Gone if the collection changed so much between two pages that the rest is no longer available.
        """
        objects: list[Kept] = []
        asked: dict[str, str | int | bool] = {"limit": PAGE_ITEMS, **(query or {})}
        more_tries = GET_TRIES - 1
        while True:
            try:
                page = await self._page(path, asked, keep)
            except _Broken as error:
                if not more_tries:
                    raise
                more_tries -= 1
                # A list that names a version comes from the API server's cache, in one piece whatever the limit. If
                # that is too large for the time limit or for a proxy, pages are not; and they are no older.
                asked = _without_version(asked)
                logger.info("Listing again, in pages: it broke off", extra={"path": path, "err": str(error)})
                continue
            objects += page.items
            if not page.rest:
                return ObjectList(items=objects, resource_version=page.resource_version)
            # The token includes the version; the API server rejects a continued list that names one, too.
            asked = {**_without_version(asked), "continue": page.rest}

    async def create(self, path: str, body: Mapping[str, Any], *, query: Query | None = None) -> dict[str, Any]:
        """POST `body` to the collection (or subresource) at `path`; return the object as stored."""
        return await self._call("POST", path, query or {}, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT `body` at `path`; raises Conflict unless its metadata.resourceVersion is the current one.

        Without a resourceVersion in the body it replaces whatever is there: see `compare_and_swap`.
        """
        return await self._call("PUT", path, {}, body=body)

    async def patch(self, path: str, body: Body, content_type: str = MERGE_PATCH) -> dict[str, Any]:
        """PATCH the object at `path`."""
        return await self._call("PATCH", path, {}, body=body, content_type=content_type)

    async def delete(self, path: str, *, uid: str | None = None, query: Query | None = None) -> dict[str, Any]:
        """DELETE the object at `path`; with `uid`, only the object with that UID (else Conflict)."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}} if uid else None
        return await self._call("DELETE", path, query or {}, body=body)

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, query: Query | None = None, *, timeout_seconds: int | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Yield the events of a collection, `{"type": …, "object": …}`, once the API server has accepted the watch.

        They end after `timeout_seconds`, by default a random time, so that watches that began together, as after a
        restart of the API server, do not all end together. BOOKMARK events are included. An ERROR event (mostly Gone)
        and a broken connection (Unavailable) are raised.
        """
        if timeout_seconds is None:
            timeout_seconds = random.randint(*WATCH_SECONDS)  # noqa: S311 (no secret)
        request = transport.HttpRequest(
            "GET",
            path,
            timeout_seconds + WATCH_GRACE_SECONDS,
            {"allowWatchBookmarks": True, **(query or {}), "watch": True, "timeoutSeconds": timeout_seconds},
        )
        async with (
            self._transport.open(request) as answer,
            contextlib.aclosing(_events(answer, request)) as events,
        ):
            yield events

    async def _call(
        self,
        method: str,
        path: str,
        query: Query,
        *,
        body: Body | None = None,
        content_type: str = transport.JSON,
    ) -> dict[str, Any]:
        request = transport.HttpRequest(method, path, CALL_SECONDS, query, body, content_type)

        async def call() -> Json:
            async with self._transport.open(request) as answer:
                with transport.network_errors(request):
                    content = await answer.read()
            return _decoded(content, request)

        return await (_retried(call) if method == "GET" else call())

    async def _page(self, path: str, query: Query, keep: Callable[[Json], Kept]) -> _Page[Kept]:
        request = transport.HttpRequest("GET", path, LIST_SECONDS, query)

        async def read() -> _Page[Kept]:
            async with self._transport.open(request) as answer:
                return await _taken_apart(answer, request, keep)

        return await _retried(read)


async def _retried(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run an idempotent call, and retry it a few times if the connection breaks."""
    more_tries = GET_TRIES - 1
    while True:
        try:
            return await call()
        except api_errors.Unavailable as error:
            if not more_tries or not transport.was_reset(error):
                raise
            more_tries -= 1
            await asyncio.sleep(GET_PAUSE_SECONDS)


async def _taken_apart(
    answer: aiohttp.ClientResponse, request: transport.HttpRequest, keep: Callable[[Json], Kept]
) -> _Page[Kept]:
    """Parse a list in portions, and let other tasks run after each."""
    reader = items.Items()
    objects: list[Kept] = []

    def take(content: bytes, *, is_last: bool = False) -> None:
        listed = _items(reader.feed(content, is_last=is_last), request)
        # Built-in kinds omit these in lists but not in watches; a store needs both alike.
        objects.extend(keep(item if "kind" in item else {**_kind(reader.fields), **item}) for item in listed)

    try:
        with transport.network_errors(request):
            async for content in answer.content.iter_chunked(items.PORTION_BYTES):
                take(content)
                await asyncio.sleep(0)
    except api_errors.Unavailable as error:
        if reader.has_begun:
            raise _Broken(str(error)) from error  # and not from what broke it: see `transport.was_reset`
        raise
    take(b"", is_last=True)
    metadata = reader.fields.get("metadata") or {}
    return _Page(objects, str(metadata.get("resourceVersion", "")), metadata.get("continue") or "")


async def _events(
    answer: aiohttp.ClientResponse, request: transport.HttpRequest
) -> AsyncGenerator[dict[str, Any], None]:
    """Split the stream into lines of any length: aiohttp's own reader rejects lines longer than its buffer."""
    line = bytearray()
    with transport.network_errors(request):
        async for chunk in answer.content.iter_any():
            *ends, beginning = chunk.split(b"\n")
            for end in ends:
                line += end
                if line:
                    yield _event(_decoded(line, request), request)
                line.clear()
            line += beginning
            if len(line) > MAX_EVENT_BYTES:
                raise api_errors.Unavailable(f"{request.name}: an event is longer than {MAX_EVENT_BYTES} bytes")
    if line:
        raise api_errors.Unavailable(f"{request.name}: the stream ended in the middle of an event")


def _event(event: dict[str, Any], request: transport.HttpRequest) -> dict[str, Any]:
    if not isinstance(event.get("object"), dict):
        raise api_errors.Unavailable(f"{request.name}: an event has no object")
    if event.get("type") == "ERROR":
        raise api_errors.from_status(event["object"], doing=request.name)
    return event


def _decoded(content: bytes | bytearray, request: transport.HttpRequest) -> dict[str, Any]:
    try:
        decoded = json.loads(content)
    except ValueError as error:
        raise api_errors.Unavailable(f"{request.name}: the answer is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise api_errors.Unavailable(f"{request.name}: the answer is not a JSON object")
    return decoded


def _items(decoded: Iterator[Json], request: transport.HttpRequest) -> Iterator[Json]:
    try:
        yield from decoded
    except ValueError as error:
        raise api_errors.Unavailable(f"{request.name}: the answer is not a list in JSON: {error}") from error


def _kind(listed: Json) -> Json:
    """Return the kind of the items of a list."""
    return {"apiVersion": listed.get("apiVersion", ""), "kind": str(listed.get("kind", "")).removesuffix("List")}


def _without_version(asked: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    return {key: value for key, value in asked.items() if key not in _VERSION_KEYS}
