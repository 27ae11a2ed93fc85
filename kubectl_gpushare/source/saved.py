"""Saved objects of any kind, from files as kubectl prints them: JSON or YAML, single or in lists."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpushare import object_parsers
from gpushare.object_parsers import Json
from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import inputs, objects

_CHUNK_BYTES = 1 << 20


def read(paths: Iterable[str]) -> list[Json]:
    """Return every object in these files; `-` is standard input. Raises `FileError`."""
    return [{"kind": kind, **item} for path in paths for kind, item in _all_in(path)]


def items(path: str, *, hint: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the kind of each object in the file, and the object; ("", description) for anything else. Raises
    `FileError`.

    hint: what to do about a file that cannot be read.
    """
    where = inputs.name(path)
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as stream:
            first = stream.read(_CHUNK_BYTES)
            chunks = itertools.chain([first], iter(lambda: stream.read(_CHUNK_BYTES), b""))
            is_json = first.lstrip()[:1] == b"{"
            for kind, item in objects.Reader(chunks) if is_json else _yaml(chunks, where):
                if isinstance(item, dict) and (wrong := inputs.not_text(item)):
                    raise plugin_errors.FileError(f"{where} has a {kind or 'document'} that is invalid: {wrong}")
                yield kind, item
    except OSError as error:
        raise plugin_errors.FileError(f"{where} cannot be read: {error.strerror}{hint}") from error
    except object_parsers.NotJson as error:
        raise plugin_errors.FileError(f"{where} is not JSON as kubectl prints it: {error}") from error


def _all_in(path: str) -> Iterator[tuple[str, Json]]:
    for kind, item in items(path):
        if isinstance(item, dict):
            yield kind, item
        elif item is not None:
            raise plugin_errors.FileError(
                f"{inputs.name(path)} has something in it that is not a Kubernetes object: {str(item)[:60]}"
            )


def _yaml(chunks: Iterable[bytes], where: str) -> Iterator[tuple[str, Any]]:
    for document in inputs.documents(b"".join(chunks), where):
        kind = str(document.get("kind", "")) if isinstance(document, dict) else ""
        items = document.get("items") if isinstance(document, dict) else None
        if not isinstance(items, list):
            yield kind, document
            continue
        for item in items:
            if isinstance(item, dict):
                yield str(item.get("kind") or kind.removesuffix("List")), item
