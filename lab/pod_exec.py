"""Runs commands in containers as `kubectl exec` does, by the same WebSocket protocol, without starting kubectl."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

from lab import lab_errors, raw_api

SECONDS: Final = 60.0  # without a word from the command
_PROTOCOL: Final = "v4.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3  # the first byte of each message
_CLOSE, _CONTINUED = 8, 0  # opcodes of frames


def run(api: raw_api.RawApi, pod: str, command: Sequence[str], container: str = "") -> str:
    """Run a command in a container of a pod, which is an API path; return its standard output.

    Raises:
        LabError: it failed, or was silent for a minute; the message contains its standard error.
    """
    words = [("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")]
    query = urllib.parse.urlencode([*words, *([("container", container)] if container else [])])
    output = dict.fromkeys((_STDOUT, _STDERR, _STATUS), b"")
    what = f"exec {pod}: {' '.join(command)}"
    try:
        with _opened(api, f"{pod}/exec?{query}") as stream:
            for channel, data in _messages(stream):
                output[channel] += data
    except (OSError, http.client.HTTPException) as error:
        raise lab_errors.LabError(f"{what}: {error}") from error
    status: Any = json.loads(output[_STATUS] or "{}")
    if status.get("status") != "Success":
        said = output[_STDERR].decode(errors="replace").strip()
        raise lab_errors.LabError(f"{what}: {said} {status.get('message', 'it ended without a status')}")
    return output[_STDOUT].decode(errors="replace")


@contextlib.contextmanager
def _opened(api: raw_api.RawApi, path: str) -> Iterator[IO[bytes]]:
    """Open a WebSocket, and yield what the server sends."""
    server = urllib.parse.urlsplit(api.server)
    connection = http.client.HTTPSConnection(
        server.hostname or "", server.port or 443, timeout=SECONDS, context=api.tls
    )
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": _PROTOCOL,
    }
    with contextlib.closing(connection):
        connection.request("GET", server.path + path, headers=api.headers | upgrade)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
            raise lab_errors.LabError(f"GET {path}: {raw_api.refusal(answer.read())}")
        yield answer.fp
        answer.close()


def _messages(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each message's channel and data. Frames of a server are not masked."""
    channel = _STDOUT
    while head := stream.read(2):
        opcode, length = head[0] & 15, head[1] & 127
        if length >= 126:
            length = int.from_bytes(stream.read(2 if length == 126 else 8))
        data = stream.read(length)
        if opcode == _CLOSE:
            return
        if opcode == _CONTINUED:
            yield channel, data
        elif data and data[0] in {_STDOUT, _STDERR, _STATUS}:
            channel = data[0]
            yield channel, data[1:]
