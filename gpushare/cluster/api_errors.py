"""The ways in which a call to the API server can fail.

The classes are independent of the HTTP library, so that callers can be read and tested without it.
"""

# ruff: noqa: N818 (named as the API names them: NotFound, Conflict, AlreadyExists)

from __future__ import annotations

import json
from typing import Any


class ClusterError(Exception):
    """A call to the API server failed, by a status without a class below; the message is the API server's own if any.

    status: the HTTP status, or 0 without a response. reason: the API's machine-readable reason (`Conflict`, `Expired`
    …), or "".
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Unauthorized(ClusterError):
    """401: the credentials are not accepted."""


class Forbidden(ClusterError):
    """403: RBAC, quota, or an admission policy."""


class NotFound(ClusterError):
    """404."""


class Conflict(ClusterError):
    """409: another client changed the object since it was read."""


class AlreadyExists(ClusterError):
    """409 on create: the name is taken."""


class Gone(ClusterError):
    """410: the resource version, or the continue token, is too old; list again."""


class Invalid(ClusterError):
    """400 or 422: the API server does not accept the object."""


class Unavailable(ClusterError):
    """Network, timeout, 429 or 5xx: retry. After a write it is unknown whether the write happened: read first."""

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
    """Turn an unsuccessful HTTP response into one of our errors.

    body: as received; normally a `Status` object, but anything if a proxy answered. doing: method and path, for the
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
    """Turn a `Status` object, as in an HTTP response or in a watch's ERROR event, into one of our errors."""
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
