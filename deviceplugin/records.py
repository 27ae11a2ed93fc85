"""Frozen dataclasses to JSON and back, by their annotations: for what one agent leaves on disk for the next, and for
what it and the arbiter's process tell each other.

A field that a record lacks has its default, so that a newer agent reads what an older one wrote; one that is not known,
or of another type, is an error: what it would mean nobody can say.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any, TypeVar

Record = TypeVar("Record")


def write(value: Any) -> Any:
    """The value as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: write(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [write(one) for one in value]
    return value


def read(kind: type[Record], document: Any) -> Record:
    """The `kind` that was written. Raises ValueError."""
    found = _read(kind, document)
    assert isinstance(found, kind)  # noqa: S101 - tells mypy what `_read` has checked
    return found


def check(is_right: bool, problem: str) -> None:
    """Raises ValueError unless it is right."""
    if not is_right:
        raise ValueError(problem)


def _read(kind: Any, document: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if document is None and type(None) in arguments:
            return None
        (kind,) = [one for one in arguments if one is not type(None)]
        return _read(kind, document)
    if origin is tuple:
        return _tuple(arguments, document)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, document)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(document)
    if kind in (str, int, bool, float) and type(document) is kind:
        return document
    raise ValueError(f"{document!r} is no {getattr(kind, '__name__', kind)}")


def _tuple(arguments: tuple[Any, ...], document: Any) -> tuple[Any, ...]:
    check(isinstance(document, list), f"{document!r} is no list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_read(arguments[0], one) for one in document)
    return tuple(_read(kind, one) for kind, one in zip(arguments, document, strict=True))


def _record(kind: type[Any], document: Any) -> Any:
    check(isinstance(document, dict), f"{document!r} is no {kind.__name__}")
    hints = _hints(kind)  # type: ignore[arg-type] # a class is hashable
    unknown = document.keys() - hints.keys()
    if unknown:
        raise ValueError(f"a {kind.__name__} has no {', '.join(sorted(unknown))}")
    try:
        return kind(**{name: _read(hints[name], value) for name, value in document.items()})
    except TypeError as error:
        raise ValueError(str(error)) from error


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)
