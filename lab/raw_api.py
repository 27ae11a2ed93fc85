"""An HTTP client for the API server, as `kubectl get --raw`, but without the tenth of a second for starting kubectl."""

from __future__ import annotations

import base64
import functools
import http
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml

from lab import lab_errors

TIMEOUT_SECONDS: Final = 60.0
# The API server closes connections that were idle for 90 s. A request on one at that moment gets no answer, and may or
# may not have been carried out, so older connections are not used.
OLDEST_SECONDS: Final = 60.0

_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"


class RawApi:
    """A connection pool for one API server; thread-safe.

    server: its URL. headers: the credentials, unless `tls` has a client certificate.
    """

    def __init__(self, server: str, tls: ssl.SSLContext, headers: dict[str, str]) -> None:
        self.server = server.rstrip("/")
        self.headers = headers
        self.tls = tls
        self._lock = threading.Lock()
        self._renew()

    def send(self, method: str, path: str, document: object = None, *, user: str = "") -> bytes | None:
        """Return the API server's response, or None if the object does not exist.

        document: the object to store; for PATCH a merge patch (a mapping) or a JSON patch (a sequence). user: the user
        to impersonate, as kubectl's --as.

        Raises:
            LabError: the API server is unreachable, or refuses.
        """
        headers = {**self.headers, **({"Impersonate-User": user} if user else {})}
        if method == "PATCH":
            headers["Content-Type"] = _MERGE_PATCH if isinstance(document, Mapping) else _JSON_PATCH
        elif document is not None:
            headers["Content-Type"] = "application/json"
        body = None if document is None else json.dumps(document)
        try:
            answer = self._answer(method, path, body, headers)
        except urllib3.exceptions.HTTPError as error:
            raise lab_errors.LabError(f"{method} {path}: {error}") from error
        if answer.status == http.HTTPStatus.NOT_FOUND:
            return None
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise lab_errors.LabError(f"{method} {path}: {refusal(answer.data)}")
        return answer.data

    def _answer(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> urllib3.response.BaseHTTPResponse:
        try:
            return self._connections().request(method, self.server + path, body=body, headers=headers)
        except urllib3.exceptions.ProtocolError:
            if method != "GET":  # the API server may have executed the request
                raise
        return self._connections().request(method, self.server + path, headers=headers)

    def _connections(self) -> urllib3.PoolManager:
        with self._lock:
            if time.monotonic() - self._since > OLDEST_SECONDS:
                self._renew()  # not clear(), because other threads may be about to take a connection from the old list
            return self._pool

    def _renew(self) -> None:
        self._since = time.monotonic()
        self._pool = urllib3.PoolManager(ssl_context=self.tls, timeout=TIMEOUT_SECONDS, retries=False, maxsize=8)


def of(kubeconfig: Path) -> RawApi:
    """Return a client for a kubeconfig's context, with its certificates as data.

    Raises:
        LabError: the user has neither an embedded client certificate nor a token.
    """
    return _of(kubeconfig.read_text())  # not by its path, because a later lab in the same directory has another server


@functools.cache
def _of(kubeconfig: str) -> RawApi:
    document = yaml.safe_load(kubeconfig)
    context = _named(document["contexts"], document["current-context"])["context"]
    cluster = _named(document["clusters"], context["cluster"])["cluster"]
    user = _named(document["users"], context["user"])["user"]
    authority = cluster.get("certificate-authority-data")
    tls = ssl.create_default_context(cadata=_decoded(authority) if authority else None)
    # as kubectl does: strict verification requires extensions that many clusters' certificates lack
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if "token" in user:
        return RawApi(cluster["server"], tls, {"Authorization": f"Bearer {user['token']}"})
    if "client-certificate-data" not in user or "client-key-data" not in user:
        raise lab_errors.LabError(
            f"the kubeconfig's user {context['user']} has neither a client certificate nor a token; "
            "make a token by `kubectl create token`, and use a kubeconfig with it"
        )
    with tempfile.NamedTemporaryFile("w") as pair:  # only its owner can read it
        pair.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
        pair.flush()
        tls.load_cert_chain(pair.name)
    return RawApi(cluster["server"], tls, {})


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()


def refusal(content: bytes) -> str:
    """Return the message of a Status, as kubectl prints it, or the body of a proxy's response."""
    try:
        status = json.loads(content)
        return f"{status['reason']}: {status['message']}"
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")
