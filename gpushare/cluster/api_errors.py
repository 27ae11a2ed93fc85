"""Errors of a call to the API server.

    ClusterError                 any of these; also a status that has no class of its own
     ├─ Unauthorized             401: the credentials are not accepted
     ├─ Forbidden                403: RBAC, quota, or an admission policy
     ├─ NotFound                 404
     ├─ Conflict                 409: the object changed since it was read
     ├─ AlreadyExists            409 on create
     ├─ Gone                     410: the resource version (or continue token) is too old; list again
     ├─ Invalid                  400, 422: the API server rejects the object
     └─ Unavailable              network, timeout, 5xx, 429: retry; after `retry_after_seconds` if the server sent that

After an `Unavailable` write, it is unknown whether the write happened: read before writing again.

These are not the HTTP library's classes, so callers can be read and tested without knowing which library it is.
"""

# ruff: noqa: N818 (named as the API names them: NotFound, Conflict, AlreadyExists)

from __future__ import annotations

import json
from typing import Any


class ClusterError(Exception):
    """A call to the API server failed; the message is the API server's own, if it sent one.

    status: the HTTP status, or 0 if there was no answer. reason: the API's machine-readable reason (`Conflict`,
    `Expired` …), or "".
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Unauthorized(ClusterError):
    """401."""


class Forbidden(ClusterError):
    """403."""


class NotFound(ClusterError):
    """404."""


class Conflict(ClusterError):
    """409: another client changed the object since it was read."""


class AlreadyExists(ClusterError):
    """409 on create: an object with this name exists."""


class Gone(ClusterError):
    """410: the requested version is no longer available; list again."""


class Invalid(ClusterError):
    """400 or 422: the API server rejects the content."""


class Unavailable(ClusterError):
    """No answer, or one that asks to retry later."""

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after_seconds = retry_after_seconds


_BY_STATUS: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


def from_answer(
    status: int, body: bytes | str, *, doing: str, retry_after_seconds: float | None = None
) -> ClusterError:
    """Return the error for an HTTP response that is not a success.

    body: as received; usually a `Status` object, but anything if a proxy answered. doing: method and path, for the
    message.
    """
    try:
        decoded = json.loads(body)
    except ValueError:
        decoded = None
    details: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
    if details.get("kind") != "Status":
        text = body.decode(errors="replace") if isinstance(body, bytes) else body
        details = {"message": " ".join(text.split())[:500]}
    return from_status({**details, "code": status}, doing=doing, retry_after_seconds=retry_after_seconds)


def from_status(details: dict[str, Any], *, doing: str, retry_after_seconds: float | None = None) -> ClusterError:
    """Return the error for a `Status` object, from an HTTP response or a watch's ERROR event."""
    status = int(details.get("code") or 0)
    reason = str(details.get("reason") or "")
    message = f"{doing}: {details.get('message') or reason or 'no reason given'} (HTTP {status})"
    if status == 429 or status >= 500 or status == 0:
        if retry_after_seconds is None:
            more = details.get("details")
            said = more.get("retryAfterSeconds") if isinstance(more, dict) else None
            retry_after_seconds = float(said) if isinstance(said, (int, float)) and not isinstance(said, bool) else None
        return Unavailable(message, status=status, reason=reason, retry_after_seconds=retry_after_seconds)
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(status, ClusterError)
    return kind(message, status=status, reason=reason)
