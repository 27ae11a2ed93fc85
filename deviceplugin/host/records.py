"""Converts frozen dataclasses to JSON and back by their annotations, and writes files atomically.

A missing field gets its default, so a newer agent can read an older record. An unknown field or a wrong type is an
error, because its meaning is unknown. A file is written under a temporary name and renamed: readers see the old or the
new file, even if the writer dies, and processes that have the old file open or mapped keep it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import functools
import json
import os
import types
import typing
from pathlib import Path
from typing import Any, Final, TypeVar

Record = TypeVar("Record")
_hints: Final = functools.cache(typing.get_type_hints)


def to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def load(path: Path) -> Any:
    """Parse a JSON file. Raises OSError, ValueError."""
    return loads(path.read_bytes())


def loads(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read(kind: type[Record], document: Any, *, newer: bool = False) -> Record:
    """Build a `kind` from JSON. Raises ValueError.

    newer: ignore unknown fields at every level, because a newer agent may have written them.
    """
    return typing.cast(Record, _read_as(kind, document, newer))


def check(is_right: bool, problem: str) -> None:
    """Raise ValueError with `problem` unless `is_right`."""
    if not is_right:
        raise ValueError(problem)


def _read_as(kind: Any, document: Any, newer: bool) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if document is None and type(None) in arguments:
            return None
        (kind,) = [argument for argument in arguments if argument is not type(None)]
        return _read_as(kind, document, newer)
    if origin is tuple:
        check(isinstance(document, list), f"{document!r} is not a list")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read_as(arguments[0], item, newer) for item in document)
        return tuple(_read_as(kind, item, newer) for kind, item in zip(arguments, document, strict=True))
    if origin is dict:
        check(isinstance(document, dict), f"{document!r} is not an object")
        return {key: _read_as(arguments[1], value, newer) for key, value in document.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, document, newer)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(document)
    if kind in (str, int, bool, float) and type(document) is kind:
        if kind is str:
            document.encode()  # raises ValueError for a lone surrogate, which cannot be encoded
        return document
    raise ValueError(f"{document!r} is not a {getattr(kind, '__name__', kind)}")


def _record(kind: type[Any], document: Any, newer: bool) -> Any:
    check(isinstance(document, dict), f"{document!r} is not a {kind.__name__}")
    hints = _hints(kind)  # type: ignore[arg-type] # a class is hashable
    unknown = document.keys() - hints.keys()
    if unknown and not newer:
        raise ValueError(f"a {kind.__name__} has no {', '.join(sorted(unknown))}")
    try:
        return kind(**{name: _read_as(hints[name], value, newer) for name, value in document.items() if name in hints})
    except TypeError as error:
        raise ValueError(str(error)) from error


MODE: Final = 0o644
DIRECTORY_MODE: Final = 0o755
UNREADABLE: Final = ".unreadable"


def write_file(path: Path, content: str | bytes, *, mode: int = MODE, lasting: bool = False) -> None:
    """Write a file, and create its parent directories. Raises OSError.

    lasting: sync to disk, so that the complete file survives a power failure.
    """
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    # a dotfile, because other programs read all files of some directories
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(_bytes(content))
        os.fchmod(file.fileno(), mode)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)
    if lasting:  # a power failure must not restore the replaced file
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        except OSError as error:
            # Some file systems cannot sync directories; the file itself is written.
            if error.errno not in (errno.EINVAL, errno.EBADF):
                raise
        finally:
            os.close(directory)


def write_if_changed(path: Path, content: str | bytes, *, mode: int = MODE, lasting: bool = False) -> bool:
    """Write a file unless it already has this content; return whether it was written. Raises OSError."""
    try:
        if path.read_bytes() == _bytes(content):
            return False
    except FileNotFoundError:
        pass
    write_file(path, content, mode=mode, lasting=lasting)
    return True


def set_aside(path: Path) -> Path:
    """Rename an invalid file, which a newer agent may have written, and return the new path."""
    aside = path.with_name(f"{path.name}{UNREADABLE}")
    with contextlib.suppress(OSError):
        path.replace(aside)
    return aside


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
