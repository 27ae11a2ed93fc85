"""The API server may end an idle connection just when a request is sent on it."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lab import lab_errors, raw_api


class Server(http.server.ThreadingHTTPServer):
    """Ends `unanswered` connections instead of answering, then answers; records requests by connection."""

    unanswered = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.requests: list[list[str]] = []


class Connection(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.requests: list[str] = []
        self.server.requests.append(self.requests)

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append(self.command)
        if self.server.unanswered:
            self.server.unanswered -= 1
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 (as http.server calls them)

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        made.daemon_threads = True  # each serves a connection that the client keeps
        serving = threading.Thread(target=made.serve_forever, args=(0.02,))
        serving.start()
        try:
            yield made
        finally:
            made.shutdown()
            serving.join()


@pytest.fixture
def api(server: Server) -> raw_api.RawApi:
    return raw_api.RawApi(f"http://127.0.0.1:{server.server_port}", ssl.create_default_context(), {})


def test_reading_request_is_retried(server: Server, api: raw_api.RawApi) -> None:
    assert api.send("GET", "/a") == b"{}"
    server.unanswered = 1
    assert api.send("GET", "/a") == b"{}"
    assert server.requests == [["GET", "GET"], ["GET"]]


def test_request_is_retried_only_once(server: Server, api: raw_api.RawApi) -> None:
    server.unanswered = 2
    with pytest.raises(lab_errors.LabError, match=r"GET /a: .*without response"):
        api.send("GET", "/a")
    assert server.requests == [["GET"], ["GET"]]


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
def test_writing_request_is_not_retried(server: Server, api: raw_api.RawApi, method: str) -> None:
    server.unanswered = 1
    with pytest.raises(lab_errors.LabError, match=rf"{method} /a: .*without response"):
        api.send(method, "/a", {})
    assert server.requests == [[method]]


def test_idle_connection_is_closed_before_the_server_does(
    server: Server, api: raw_api.RawApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        api.send("POST", "/a", {})
    monkeypatch.setattr(raw_api, "OLDEST_SECONDS", 0.0)
    api.send("POST", "/a", {})
    assert server.requests == [["POST", "POST"], ["POST"]]
