"""The fields of a GPUNode's entries: numbers, texts, times."""

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
    """Return a text that is not empty. Raises CodecError."""
    if not isinstance(value, str) or not value:
        raise errors.CodecError(f"{name} is {errors.shown(value)}, not a text")
    return value


def texts(values: Any, name: str) -> tuple[str, ...]:
    """Return a list of texts that are not empty. Raises CodecError, or TypeError if it is not a list."""
    return tuple([text(value, name) for value in values])  # a list is faster than a generator here


def parse_time(text: str) -> float:
    """Return the Unix seconds of an RFC 3339 time."""
    return datetime.datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """Return the time as RFC 3339 in UTC, to the microsecond (Kubernetes' MicroTime)."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
