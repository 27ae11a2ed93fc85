"""The values of JSON fields of our objects: one function for each kind of value. Pure.

Reading raises CodecError with a sentence that names the field and the value. JSON may have any type anywhere, and
Python takes true for 1, so types are checked as well.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from gpushare import errors

MAX: Final = 2**63 - 1  # integers of Kubernetes have 64 bits


def present(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value; 0 and false are values."""
    return {key: value for key, value in fields.items() if value not in (None, "", [], {})}


def unless(value: enum.StrEnum, default: enum.StrEnum) -> str | None:
    """Return the value for `present`, without one if it is the default."""
    return None if value is default else value.value


def whole(value: Any, name: str, *, most: int = MAX) -> int:
    """Return a whole number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise errors.CodecError(f"{name} is {errors.shown(value)}, not a whole number from 0 to {most}")
    return value


def text(value: Any, name: str) -> str:
    """Return a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise errors.CodecError(f"{name} is {errors.shown(value)}, not a string")
    return value


def texts(values: Any, name: str) -> tuple[str, ...]:
    """Return strings that are not empty."""
    return tuple([text(value, name) for value in values])  # a list is faster here than a generator
