"""What the entries of a GPUNode are made of: numbers, texts, times."""

from __future__ import annotations

import datetime
from typing import Any, Final

from gpushare import errors

MAX: Final = 2**63 - 1  # an integer of Kubernetes has 64 bits


def whole(value: Any, name: str, *, most: int = MAX) -> int:
    """A whole number from 0 to `most`. Raises CodecError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise errors.CodecError(f"{name} is {errors.shown(value)}, not a whole number from 0 to {most}")
    return value


def text(value: Any, name: str) -> str:
    """A text that says something. Raises CodecError."""
    if not isinstance(value, str) or not value:
        raise errors.CodecError(f"{name} is {errors.shown(value)}, not a text")
    return value


def texts(values: Any, name: str) -> tuple[str, ...]:
    """A list of such. Raises CodecError, and TypeError for what is not a list."""
    return tuple([text(value, name) for value in values])  # a list is faster here than a generator


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 time."""
    return datetime.datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC, to the microsecond (Kubernetes' MicroTime)."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
