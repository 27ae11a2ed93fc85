"""Saved objects of any kind, from files as kubectl prints them: JSON or YAML, single or in lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kubectl_gpushare import plugin_errors
from kubectl_gpushare.source import inputs, objects, saved_object


def read(paths: Iterable[str]) -> list[objects.Json]:
    """Every object in these files; `-` is standard input. Raises `FileError`."""
    return [_sound(item, inputs.name(path)) for path in paths for item in _objects(path)]


def _sound(item: objects.Json, where: str) -> objects.Json:
    if item.get("kind") in (*saved_object.KINDS,) and (wrong := saved_object.problem(item)):
        raise plugin_errors.FileError(f"{where} has a {item['kind']} that is invalid: {wrong}")
    return item


def _objects(path: str) -> Iterator[objects.Json]:
    where, text = inputs.name(path), inputs.text(path)
    if text.lstrip()[:1] == "{":
        try:
            for kind, item in objects.Reader([text.encode()]):
                yield {"kind": kind, **item}
        except objects.NotJson as error:
            raise plugin_errors.FileError(f"{where} is not JSON as kubectl prints it: {error}") from error
        return
    for document in inputs.documents(text, where):
        yield from _flat(document, where)


def _flat(document: Any, where: str) -> Iterator[objects.Json]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise plugin_errors.FileError(
            f"{where} has something in it that is not a Kubernetes object: {str(document)[:60]}"
        )
    items = document.get("items")
    if not isinstance(items, list):
        yield document
        return
    kind = str(document.get("kind") or "").removesuffix("List")
    for item in items:
        if isinstance(item, dict):
            yield {"kind": kind, **item}
