"""Inputs: texts (UTF-8) and Kubernetes objects (JSON or YAML, or lists) in files; `-` is standard input."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gpushare import contract, errors, object_parsers, pod, request
from gpushare.object_parsers import Json
from kubectl_gpushare import kubectl, plugin_errors

_MANIFESTS: Final = frozenset({".json", ".yaml", ".yml"})


def name(path: str) -> str:
    return "standard input" if path == "-" else path


def manifest_files(path: str) -> list[str]:
    """Return the manifests of a directory, those that `kubectl apply -f` would read, or the file itself."""
    if path == "-" or not Path(path).is_dir():
        return [path]
    return sorted(str(file) for file in Path(path).iterdir() if file.suffix in _MANIFESTS and file.is_file())


def documents(text: str | bytes, where: str) -> Iterator[Any]:
    from gpushare.object_parsers import read_yaml

    try:
        yield from read_yaml(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise plugin_errors.FileError(f"{where} cannot be read: it is not text") from error
    except errors.CodecError as error:
        raise plugin_errors.FileError(f"{where} is neither JSON nor YAML: {error}") from error


def text(path: str) -> str:
    try:
        return (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise plugin_errors.FileError(f"{name(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise plugin_errors.FileError(f"{name(path)} cannot be read: it is not text") from error


def not_text(item: Mapping[str, Any]) -> str:
    """Name the first annotation or label that is not text, with the remedy: YAML reads an unquoted 0.5 as a number."""
    metadata = item.get("metadata")
    for field in ("annotations", "labels"):
        written = metadata.get(field) if isinstance(metadata, Mapping) else None
        for key, value in written.items() if isinstance(written, Mapping) else ():
            if not isinstance(key, str) or not isinstance(value, str | None):
                return f'metadata.{field} has "{key}" that is not text: put it in quotes'
    return ""


_CHUNK_BYTES = 1 << 20


def objects(paths: Iterable[str]) -> list[Json]:
    """Return every object in these files. Raises `FileError`, also for anything else in them."""
    found = []
    for path in paths:
        for kind, item in items(path):
            if isinstance(item, dict):
                found.append({"kind": kind, **item})
            elif item is not None:
                raise plugin_errors.FileError(
                    f"{name(path)} has something in it that is not a Kubernetes object: {str(item)[:60]}"
                )
    return found


def items(path: str, *, hint: str = "") -> Iterator[tuple[str, Any]]:
    """Yield kind and content of each object; ("", description) for anything else. Raises `FileError` with this hint."""
    where = name(path)
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as stream:
            first = stream.read(_CHUNK_BYTES)
            chunks = itertools.chain([first], iter(lambda: stream.read(_CHUNK_BYTES), b""))
            is_json = first.lstrip()[:1] == b"{"
            for kind, item in kubectl.Reader(chunks) if is_json else _yaml(chunks, where):
                if isinstance(item, dict) and (wrong := not_text(item)):
                    raise plugin_errors.FileError(f"{where} has a {kind or 'document'} that is invalid: {wrong}")
                yield kind, item
    except OSError as error:
        raise plugin_errors.FileError(f"{where} cannot be read: {error.strerror}{hint}") from error
    except object_parsers.NotJson as error:
        raise plugin_errors.FileError(f"{where} is not JSON as kubectl prints it: {error}") from error


def _yaml(chunks: Iterable[bytes], where: str) -> Iterator[tuple[str, Any]]:
    for document in documents(b"".join(chunks), where):
        kind = str(document.get("kind", "")) if isinstance(document, dict) else ""
        items = document.get("items") if isinstance(document, dict) else None
        if not isinstance(items, list):
            yield kind, document
            continue
        for item in items:
            if isinstance(item, dict):
                yield str(item.get("kind") or kind.removesuffix("List")), item


_PREFIXES = (contract.PREFIX, "gpushare/", "gpushare.com/", "gpushare.")  # ours, and usual mistakes for it
_MAX_MISSPELT = 3


def misspelt(manifest: pod.PodJson) -> str:
    metadata = manifest.get("metadata") or {}
    said = [
        *_misspelt_keys(metadata.get("annotations"), "annotation"),
        *_misspelt_keys(metadata.get("labels"), "label"),
    ]
    return ", and ".join(said[:_MAX_MISSPELT])


def _misspelt_keys(written: object, kind: str) -> Iterator[str]:
    for key in map(str, written) if isinstance(written, Mapping) else ():
        stem = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), "")
        meant = request.meant(contract.PREFIX + stem) if stem and key != contract.SHARE_LABEL else ""
        if meant and (kind == "label" or meant != key):
            yield f"the {kind} {errors.quoted(key)} asks for nothing: write the annotation {meant}"
