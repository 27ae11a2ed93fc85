"""Raw JSON to and from the API server: paths in, plain dicts out.

Every call has a timeout. Only two kinds of calls are retried here, because neither can happen twice: a call refused
with 401 (see `transport`), and a GET whose connection broke. All other retries are left to the callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import aiohttp

from gpushare import object_parsers
from gpushare.cluster import api_connection, api_errors, transport

logger = logging.getLogger(__name__)

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

CALL_SECONDS: Final = 30.0
LIST_SECONDS: Final = 60.0
WATCH_SECONDS: Final = (290, 580)  # requested from the server, whose default is 30 to 60 minutes
WATCH_GRACE_SECONDS: Final = 15.0
PAGE_ITEMS: Final = 500
GET_TRIES: Final = 3
GET_PAUSE_SECONDS: Final = 0.05
MAX_EVENT_BYTES: Final = 64 << 20  # etcd refuses objects of more than a few MiB
_VERSION_KEYS: Final = frozenset({"resourceVersion", "resourceVersionMatch"})

Query = transport.Query
Body = transport.Body
Json = dict[str, Any]
Answer = TypeVar("Answer")
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[Kept]):
    """A collection at one moment: the objects, as transformed, and the version from which a watch continues.

    rest: the continue token, "" on the last page.
    """

    items: list[Kept]
    resource_version: str
    rest: str = ""


class _BrokenList(api_errors.Unavailable):
    """A list that had begun to arrive, and then broke off or timed out."""


def whole(item: Json) -> Json:
    """Return the object unchanged."""
    return item


@contextlib.asynccontextmanager
async def connect(kubeconfig: str | None = None, *, component: str = "") -> AsyncIterator[ApiClient]:
    """Yield a client for the cluster that `kubeconfig` names; for None see `api_connection.find`.

    component: our name in the API server's audit log and as a field manager: `gpushare-COMPONENT`.

    Raises ClusterError without a usable configuration. It does not call the API server yet.
    """
    user_agent = f"gpushare-{component}" if component else "gpushare"
    opened = transport.Transport(await api_connection.find(kubeconfig), user_agent=user_agent)
    try:
        yield ApiClient(opened)
    finally:
        await opened.close()


class ApiClient:
    """Calls to one API server; `connect` makes it. All methods raise only the errors of `api_errors`."""

    def __init__(self, opened: transport.Transport) -> None:
        self._transport = opened
        self.answers = opened.answers
        self.time = opened.time

    async def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """Return the JSON object at `path`."""
        return await self._call("GET", path, query or {})

    async def list(self, path: str, query: Query | None = None, *, keep: Callable[[Json], Kept]) -> ObjectList[Kept]:
        """Return a collection.

        keep: called with each object (with apiVersion and kind) as it arrives; returns what to store of it. Only a few
        objects exist at a time, however long the list is. After a broken connection it may see an object twice.

        Raises Gone if the continue token expired between two pages.
        """
        objects: list[Kept] = []
        asked: dict[str, str | int | bool] = {"limit": PAGE_ITEMS, **(query or {})}
        more_tries = GET_TRIES - 1
        while True:
            try:
                page = await self._page(path, asked, keep)
            except _BrokenList as error:
                if not more_tries:
                    raise
                more_tries -= 1
                # A list that names a version comes from the API server's cache, in one piece whatever the limit. If
                # that is too much for the timeout or for a proxy, pages are not; and they are no older.
                asked = _without_version(asked)
                logger.info("Listing again in pages: the response broke off", extra={"path": path, "err": str(error)})
                continue
            objects += page.items
            if not page.rest:
                return ObjectList(objects, page.resource_version)
            # The token contains the version; the API server rejects a continued list that names a version again.
            asked = {**_without_version(asked), "continue": page.rest}

    async def create(self, path: str, body: Mapping[str, Any], *, query: Query | None = None) -> dict[str, Any]:
        """POST `body` to the collection (or subresource) at `path`; return the object as stored."""
        return await self._call("POST", path, query or {}, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT `body` at `path`; raises Conflict unless its metadata.resourceVersion is the current one.

        Without a resourceVersion the body overwrites any version: see `compare_and_swap`.
        """
        return await self._call("PUT", path, {}, body=body)

    async def patch(self, path: str, body: Body, content_type: str = MERGE_PATCH) -> dict[str, Any]:
        """PATCH the object at `path`."""
        return await self._call("PATCH", path, {}, body=body, content_type=content_type)

    async def delete(
        self, path: str, *, uid: str | None = None, grace_seconds: int | None = None, query: Query | None = None
    ) -> dict[str, Any]:
        """DELETE the object at `path`; with `uid`, raise Conflict if the object has another UID.

        grace_seconds: how long a pod may take to end.
        """
        options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        options |= {"gracePeriodSeconds": grace_seconds} if grace_seconds is not None else {}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options} if options else None
        return await self._call("DELETE", path, query or {}, body=body)

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, query: Query | None = None, *, timeout_seconds: int | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Yield the events of a collection, `{"type": …, "object": …}`, BOOKMARKs included.

        The watch ends after `timeout_seconds`. The default is random, so that watches that started together, as after a
        restart of the API server, do not end together. An ERROR event is raised (mostly Gone), and so is a broken
        connection (Unavailable).
        """
        if timeout_seconds is None:
            timeout_seconds = random.randint(*WATCH_SECONDS)  # noqa: S311 (no secret)
        request = transport.HttpRequest(
            "GET",
            path,
            timeout_seconds + WATCH_GRACE_SECONDS,
            {"allowWatchBookmarks": True, **(query or {}), "watch": True, "timeoutSeconds": timeout_seconds},
        )
        async with self._transport.open(request) as answer, contextlib.aclosing(_events(answer, request)) as events:
            yield events

    async def _call(
        self, method: str, path: str, query: Query, *, body: Body | None = None, content_type: str = transport.JSON
    ) -> dict[str, Any]:
        request = transport.HttpRequest(method, path, CALL_SECONDS, query, body, content_type)

        async def call() -> Json:
            async with self._transport.open(request) as answer:
                with transport.network_errors(request):
                    content = await answer.read()
            return _decode(content, request)

        return await (_retry(call) if method == "GET" else call())

    async def _page(self, path: str, query: Query, keep: Callable[[Json], Kept]) -> ObjectList[Kept]:
        request = transport.HttpRequest("GET", path, LIST_SECONDS, query)

        async def read() -> ObjectList[Kept]:
            async with self._transport.open(request) as answer:
                return await _parse_page(answer, request, keep)

        return await _retry(read)


async def _retry(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Retry an idempotent call a few times if the connection breaks."""
    more_tries = GET_TRIES - 1
    while True:
        try:
            return await call()
        except api_errors.Unavailable as error:
            if not more_tries or not transport.was_reset(error):
                raise
            more_tries -= 1
            await asyncio.sleep(GET_PAUSE_SECONDS)


async def _parse_page(
    answer: aiohttp.ClientResponse, request: transport.HttpRequest, keep: Callable[[Json], Kept]
) -> ObjectList[Kept]:
    """Parse a list in portions, and let the event loop run after each."""
    reader = object_parsers.ObjectReader(list_only=True)
    objects: list[Kept] = []

    def take(content: bytes, *, is_last: bool = False) -> None:
        try:
            for _, item in reader.feed(content, is_last=is_last):
                # Built-in kinds omit these in lists but not in watches; a store needs them in both.
                objects.append(keep(item if "kind" in item else {**_kind(reader.fields), **item}))
        except object_parsers.NotJson as error:
            raise api_errors.Unavailable(f"{request.name}: the answer is not a list in JSON: {error}") from error

    try:
        with transport.network_errors(request):
            async for content in answer.content.iter_chunked(object_parsers.PORTION_BYTES):
                take(content)
                await asyncio.sleep(0)
    except api_errors.Unavailable as error:
        if reader.has_begun:
            raise _BrokenList(str(error)) from error  # not from the error that broke it: see `transport.was_reset`
        raise
    take(b"", is_last=True)
    metadata = reader.fields.get("metadata") or {}
    return ObjectList(objects, str(metadata.get("resourceVersion", "")), metadata.get("continue") or "")


async def _events(
    answer: aiohttp.ClientResponse, request: transport.HttpRequest
) -> AsyncGenerator[dict[str, Any], None]:
    """Split the stream into lines of any length; aiohttp's own reader rejects lines longer than its buffer."""
    line = bytearray()
    with transport.network_errors(request):
        async for chunk in answer.content.iter_any():
            *ends, beginning = chunk.split(b"\n")
            for end in ends:
                line += end
                if line:
                    event = _decode(line, request)
                    if not isinstance(event.get("object"), dict):
                        raise api_errors.Unavailable(f"{request.name}: an event has no object")
                    if event.get("type") == "ERROR":
                        raise api_errors.from_status(event["object"], doing=request.name)
                    yield event
                line.clear()
            line += beginning
            if len(line) > MAX_EVENT_BYTES:
                raise api_errors.Unavailable(f"{request.name}: an event is longer than {MAX_EVENT_BYTES} bytes")
    if line:
        raise api_errors.Unavailable(f"{request.name}: the stream ended in the middle of an event")


def _decode(content: bytes | bytearray, request: transport.HttpRequest) -> dict[str, Any]:
    try:
        decoded = json.loads(content)
    except ValueError as error:
        raise api_errors.Unavailable(f"{request.name}: the answer is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise api_errors.Unavailable(f"{request.name}: the answer is not a JSON object")
    return decoded


def _kind(listed: Json) -> Json:
    return {"apiVersion": listed.get("apiVersion", ""), "kind": str(listed.get("kind", "")).removesuffix("List")}


def _without_version(asked: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    return {key: value for key, value in asked.items() if key not in _VERSION_KEYS}
