"""The fields of the entries of a GPUNode: numbers, texts, times."""

from __future__ import annotations

import datetime
from typing import Any, Final

from gpushare import errors

MAX: Final = 2**63 - 1  # integers of Kubernetes have 64 bits


def whole(value: Any, name: str, *, most: int = MAX) -> int:
    """Return a whole number from 0 to `most`. Raises CodecError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise errors.CodecError(f"{name} is {errors.shown(value)}, not a whole number from 0 to {most}")
    return value


def text(value: Any, name: str) -> str:
    """Return a non-empty text. Raises CodecError."""
    if not isinstance(value, str) or not value:
        raise errors.CodecError(f"{name} is {errors.shown(value)}, not a string")
    return value


def texts(values: Any, name: str) -> tuple[str, ...]:
    """Return a list of non-empty texts. Raises CodecError, and TypeError if it is not a list."""
    return tuple([text(value, name) for value in values])  # a list is faster here than a generator


def parse_time(text: str) -> float:
    """Return an RFC 3339 time as Unix seconds."""
    return datetime.datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """Return a time as RFC 3339 in UTC, to the microsecond (Kubernetes' MicroTime)."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
