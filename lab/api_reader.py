"""Reads objects from an API server by HTTP, for those who look again and again: each kubectl takes 0.14 s of a core."""

from __future__ import annotations

import base64
import functools
import http.client
import json
import ssl
import tempfile
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import yaml

from lab import lab_errors

TIMEOUT_SECONDS = 30.0


class ApiReader:
    """One connection to the API server that a kubeconfig leads to; threads take turns.

    headers: what tells who we are, where that is not the client certificate of `tls`.
    """

    def __init__(self, server: str, tls: ssl.SSLContext, headers: dict[str, str]) -> None:
        self._server = urllib.parse.urlsplit(server)
        self._tls = tls
        self._headers = headers
        self._turn = threading.Lock()
        self._connection: http.client.HTTPSConnection | None = None

    def get(self, path: str) -> dict[str, Any] | None:
        """The object or list at this path, or None where there is none.

        Raises:
            LabError: the API server is not there, or refuses.
        """
        with self._turn:
            try:
                status, content = self._answer(path)
            except (OSError, http.client.HTTPException):  # it may have closed a connection that was not used for long
                self._close()
                try:
                    status, content = self._answer(path)
                except (OSError, http.client.HTTPException) as error:
                    self._close()
                    raise lab_errors.LabError(f"GET {path}: {error}") from error
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        if status != http.HTTPStatus.OK:
            raise lab_errors.LabError(f"GET {path}: {content.decode(errors='replace')}")
        document: dict[str, Any] = json.loads(content)
        return document

    def _answer(self, path: str) -> tuple[int, bytes]:
        if self._connection is None:
            host, port = str(self._server.hostname), self._server.port or 443
            self._connection = http.client.HTTPSConnection(host, port, context=self._tls, timeout=TIMEOUT_SECONDS)
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@functools.cache
def of(kubeconfig: Path) -> ApiReader | None:
    """The reader for this kubeconfig's context; None where it names other credentials, or files beside it."""
    document = yaml.safe_load(kubeconfig.read_text())
    (context,) = [known["context"] for known in document["contexts"] if known["name"] == document["current-context"]]
    (server,) = [known["cluster"] for known in document["clusters"] if known["name"] == context["cluster"]]
    (user,) = [known["user"] for known in document["users"] if known["name"] == context["user"]]
    if "certificate-authority-data" not in server or "proxy-url" in server or "tls-server-name" in server:
        return None
    tls = ssl.create_default_context(cadata=_decoded(server["certificate-authority-data"]))
    if "token" in user:
        return ApiReader(server["server"], tls, {"Authorization": f"Bearer {user['token']}"})
    if "client-certificate-data" not in user or "client-key-data" not in user:
        return None
    with tempfile.NamedTemporaryFile("w") as pair:  # only its owner can read it
        pair.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
        pair.flush()
        tls.load_cert_chain(pair.name)
    return ApiReader(server["server"], tls, {})


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()
