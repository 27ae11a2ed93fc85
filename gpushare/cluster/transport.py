"""HTTP to the API server: one request in, one open response or one of our errors out.

It uses aiohttp directly and not kubernetes_asyncio's HTTP layer, which hides two things that a daemon needs: the socket
(without TCP keep-alive a watch whose peer is gone looks like a quiet one) and the TLS context (a CA bundle or a client
certificate may be replaced while we run). That layer also follows redirects, .netrc and the environment's proxies: each
could send the token to the wrong place, and Python understands no network ranges in NO_PROXY, where clusters write
their own. A proxy is used only if the kubeconfig names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import errno
import json
import socket
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib import parse

import aiohttp
import yarl

import gpushare
from gpushare.cluster import api_connection, api_errors

JSON: Final = "application/json"
CONNECT_SECONDS: Final = 5.0
MAX_CONNECTIONS: Final = 100
CLOSING_TURNS: Final = 100
CLOSING_TURN_SECONDS: Final = 0.005
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}

Query = Mapping[str, str | int | bool]
Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; `timeout_seconds` bounds all of it, including reading the response."""

    method: str
    path: str
    timeout_seconds: float
    query: Query
    body: Body | None = None
    content_type: str = JSON

    @property
    def name(self) -> str:
        """Method and path, the beginning of error messages."""
        return f"{self.method} {self.path}"

    @property
    def address(self) -> str:
        """Path and query, fully encoded: selectors contain characters that no library may reinterpret."""
        texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in self.query.items()}
        query = parse.urlencode(texts)
        return parse.quote(self.path, safe="/:@") + (f"?{query}" if query else "")


class Answers:
    """The number of responses so far, of any status, to any caller."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def add(self) -> None:
        """Count one more, and wake all waiters."""
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def more_than(self, count: int, *, seconds: float) -> None:
        """Wait until more than `count` have come, up to a timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.count <= count:
                    await self._next.wait()


class Transport:
    """A pool of connections to one API server."""

    def __init__(self, way: api_connection.ApiConnection, *, user_agent: str) -> None:
        self._way = way
        # The last known difference between the API server's clock and our monotonic one.
        self._ahead_seconds = time.time() - time.monotonic()
        self.answers = Answers()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=MAX_CONNECTIONS, ssl=way.tls if way.tls is not None else True, socket_factory=self._socket
            ),
            headers={"User-Agent": f"{user_agent}/{gpushare.__version__}", "Accept": JSON},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections.

        Connections of cancelled calls are still in their TLS shutdown, which no task awaits; an event loop that ends
        before them complains, so they are aborted here.
        """
        await self._session.close()
        for _ in range(CLOSING_TURNS):
            left = [opened for opened in self._sockets if opened.fileno() >= 0]
            if not left:
                return
            for open_socket in left:
                with contextlib.suppress(OSError):  # the peer has closed it already
                    open_socket.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(CLOSING_TURN_SECONDS)

    def time(self) -> float:
        """Unix seconds by the API server's clock, as of its last response; by ours at our start before that.

        The API server stamps objects with its clock; ours may be wrong, or be corrected meanwhile.
        """
        return time.monotonic() + self._ahead_seconds

    def _socket(self, address: Any) -> socket.socket:
        """Return a socket that detects a dead peer within about half a minute."""
        made = socket.socket(*address[:3])  # family, type, protocol
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            if hasattr(socket, option):  # Linux has all of them
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._sockets.add(made)
        return made

    @contextlib.asynccontextmanager
    async def open(self, request: HttpRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response to `request`, its body unread; raise one of our errors for any failure.

        A request that was refused with 401 was not carried out; it is sent once more with fresh credentials.
        """
        async with contextlib.AsyncExitStack() as stack:
            with network_errors(request):
                answer = await self._send(stack, request)
                if answer.status == 401:
                    answer = await self._send(stack, request, refused=True)
                with contextlib.suppress(ValueError):  # whole seconds are precise enough
                    date = email.utils.parsedate_to_datetime(answer.headers.get("Date", ""))
                    self._ahead_seconds = date.timestamp() - time.monotonic()
                self.answers.add()
                if not 200 <= answer.status < 300:
                    after = answer.headers.get("Retry-After", "")
                    seconds = float(after) if after.isdecimal() else None
                    body = await answer.read()
                    raise api_errors.from_answer(answer.status, body, doing=request.name, retry_after_seconds=seconds)
            yield answer

    async def _send(
        self, stack: contextlib.AsyncExitStack, request: HttpRequest, *, refused: bool = False
    ) -> aiohttp.ClientResponse:
        authorization = await self._way.authorization(refused=refused)
        access = self._way.access
        headers = {} if request.body is None else {"Content-Type": request.content_type}
        if authorization:
            headers["Authorization"] = authorization
        return await stack.enter_async_context(
            self._session.request(
                request.method,
                yarl.URL(access.server + request.address, encoded=True),
                data=None if request.body is None else json.dumps(request.body, separators=(",", ":")).encode(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=request.timeout_seconds, sock_connect=CONNECT_SECONDS),
                allow_redirects=False,
                proxy=access.proxy,
                server_hostname=access.server_name,
            )
        )


@contextlib.contextmanager
def network_errors(request: HttpRequest) -> Iterator[None]:
    """Turn the HTTP library's exceptions into Unavailable, with a sentence."""
    try:
        yield
    except TimeoutError as error:
        raise api_errors.Unavailable(f"{request.name}: the API server did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise api_errors.Unavailable(f"{request.name}: {str(error) or type(error).__name__}") from error


def was_reset(error: api_errors.Unavailable) -> bool:
    """Whether the connection broke during the call, which happens if the peer has closed an idle connection."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientConnectorError) and isinstance(cause.os_error, ConnectionResetError):
        return True  # during the TLS handshake, where asyncio sets no errno
    if isinstance(cause, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionResetError)):
        return True
    return isinstance(cause, OSError) and cause.errno in (errno.ECONNRESET, errno.EPIPE)
