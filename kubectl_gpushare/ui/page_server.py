"""Serves the page on loopback: the page, the model, its changes as server-sent events, and answers. Read-only.

Other users of this machine and any web site in the same browser can reach a loopback port. So each request must name
this server as its host (against DNS rebinding), and come from no other origin; requests for the cluster's data also
need the token in the address. The page itself is empty, and may load nothing from anywhere else.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Protocol

from kubectl_gpushare import plugin_errors
from kubectl_gpushare.ui import page_state, saved_page
from kubectl_gpushare.ui.page_model import Json

_HOST: Final = "127.0.0.1"
_HEARTBEAT_SECONDS: Final = 10.0  # between comments on a quiet stream, so that a closed browser is noticed
_REQUEST_SECONDS: Final = 30.0  # a client that sends nothing for this long is closed
_POLL_SECONDS: Final = 0.1  # how long closing may take
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_JSON, _EVENTS = "application/json; charset=utf-8", "text/event-stream; charset=utf-8"


class Replies(Protocol):
    """The functions that answer questions, by name."""

    def __contains__(self, name: str) -> bool: ...

    def answer(self, name: str, question: dict[str, str]) -> Json: ...


class PageServer:
    """A server that runs in the background from its creation until `close`."""

    def __init__(self, state: page_state.PageState, answers: Replies, *, port: int = 0) -> None:
        self._token = secrets.token_urlsafe(24)
        page = saved_page.page()
        hosts: set[str] = set()

        class Handler(_Handler):
            """Handles the requests of this server."""

        Handler.token, Handler.hosts, Handler.state, Handler.answers = self._token, hosts, state, answers
        Handler.page, Handler.policy = page.encode(), f"{saved_page.policy(page)}; frame-ancestors 'none'"
        try:
            self._server = ThreadingHTTPServer((_HOST, port), Handler)
        except OSError as error:
            raise plugin_errors.PluginError(
                f"port {port} cannot be used ({error.strerror}): choose another --port, or leave it out for a free one"
            ) from error
        self._server.daemon_threads = True
        hosts |= {f"{name}:{self._server.server_port}" for name in (_HOST, "localhost")}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def address(self) -> str:
        return f"http://{_HOST}:{self.port}/?token={self._token}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """A connection with a browser."""

    protocol_version = "HTTP/1.1"
    timeout = _REQUEST_SECONDS
    token: str
    page: bytes
    policy: str
    hosts: set[str]
    state: page_state.PageState
    answers: Replies

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if wrong := self._wrong():
            self._refuse(wrong)
            return
        if path == "/":  # has nothing of the cluster in it; a reload has no token in its address
            self._send(HTTPStatus.OK, self.page, "text/html; charset=utf-8")
            return
        try:
            pairs = urllib.parse.parse_qs(query, keep_blank_values=True, max_num_fields=20)
            asked = {key: found[0] for key, found in pairs.items()}
        except ValueError:
            asked = {}
        if not hmac.compare_digest(asked.pop("token", "").encode(errors="replace"), self.token.encode()):
            self._refuse("the token is missing or wrong: open the address that `kubectl gpushare ui` prints")
        elif path == "/cluster":
            self._send(HTTPStatus.OK, self.state.whole(), _JSON)
        elif path == "/changes":
            self._stream(int(asked["after"]) if re.fullmatch(r"\d{1,12}", asked.get("after", "")) else 0)
        elif path[1:] in self.answers:
            self._send(HTTPStatus.OK, page_state.encoded(self.answers.answer(path[1:], asked)), _JSON)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"no such page", "text/plain; charset=utf-8")

    def _refuse(self, why: str) -> None:
        self._send(HTTPStatus.FORBIDDEN, why.encode(), "text/plain; charset=utf-8")

    def _wrong(self) -> str:
        """Return why this request is rejected, or an empty string."""
        if self.headers.get("Host") not in self.hosts:
            return "this server answers only at the address that `kubectl gpushare ui` prints"
        origin = self.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] not in self.hosts:
            return "another site may not read this page"
        return ""

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self._head(status, content_type, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _stream(self, version: int) -> None:
        """Send each difference after `version` as an event, until the browser or the state closes."""
        self.close_connection = True
        self._head(HTTPStatus.OK, _EVENTS, {"Connection": "close"})
        while not self.state.is_closed:
            documents = self.state.after(version, _HEARTBEAT_SECONDS)
            if documents is None:
                self.wfile.write(b"event: reload\ndata:\n\n")
                return
            for document in documents:
                self.wfile.write(b"data: " + document + b"\n\n")
            version += len(documents)
            if not documents:
                self.wfile.write(b": alive\n\n")
            self.wfile.flush()

    def _head(self, status: HTTPStatus, content_type: str, more: dict[str, str]) -> None:
        self.send_response(status)
        own = {"Content-Type": content_type, "Content-Security-Policy": self.policy}
        for name, value in {**own, **_HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def version_string(self) -> str:
        return "gpushare"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing: the terminal shows the address, and errors of the cluster are on the page."""

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, TimeoutError):  # the browser went away
            self.close_connection = True
