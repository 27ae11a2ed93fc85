"""Inputs: the text of a file named on the command line; `-` is standard input. Always UTF-8, in any locale."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpushare import errors
from kubectl_gpushare import plugin_errors


def name(path: str) -> str:
    """Return the file's name for a sentence."""
    return "standard input" if path == "-" else path


def documents(text: str | bytes, where: str) -> Iterator[Any]:
    """Yield the documents of a YAML text. Raises `FileError`."""
    from gpushare.object_parsers import read_yaml

    try:
        yield from read_yaml(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise plugin_errors.FileError(f"{where} cannot be read: it is not text") from error
    except errors.CodecError as error:
        raise plugin_errors.FileError(f"{where} is neither JSON nor YAML: {error}") from error


def text(path: str) -> str:
    """Return the file's text. Raises `FileError`."""
    try:
        return (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise plugin_errors.FileError(f"{name(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise plugin_errors.FileError(f"{name(path)} cannot be read: it is not text") from error


def not_text(item: Mapping[str, Any]) -> str:
    """Return name the first annotation or label that is not text, with the remedy: YAML reads an unquoted 0.5 as a
    number.
    """
    metadata = item.get("metadata")
    for field in ("annotations", "labels"):
        written = metadata.get(field) if isinstance(metadata, Mapping) else None
        for key, value in written.items() if isinstance(written, Mapping) else ():
            if not isinstance(key, str) or not isinstance(value, str | None):
                return f'metadata.{field} has "{key}" that is not text: put it in quotes'
    return ""
