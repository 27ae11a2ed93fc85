"""Rewrites manifests from other sharers' syntaxes into gpushare's, by the translation that the webhook uses.

A pod template is recognised by its shape, not by the kind of the object around it, so jobs of other controllers are
rewritten too. Objects without anything to translate stay as they are, key for key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import errors, pod
from gpushare.syntaxes import kubeshare, translation

Json = Mapping[str, Any]

# The API server writes these; `kubectl apply` ignores or rejects them.
_WRITTEN: Final = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclasses.dataclass(frozen=True, slots=True)
class Migrated:
    """An object before and after. notes: requests without effect here. refused: requests without an equivalent."""

    before: Json
    after: Json
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return name_of(self.before)


def migrate(document: Json) -> Migrated | None:
    """Rewrite an object, wholly or not at all; None if it has nothing to translate."""
    notes: list[str] = []
    refused: list[str] = []

    def translated(template: Json) -> Json:
        try:
            found = translation.translate(template)
        except errors.GpushareError as error:
            refused.append(str(error))
            return template
        if found is None:
            return template
        notes.extend(found.notes)
        # Before the spec, where people look for it.
        return found.manifest if "metadata" in template else {"metadata": {}, **found.manifest}

    after = _rewritten(_as_pod(document), translated)
    if after == document and not refused:
        return None
    after = document if refused else after
    return Migrated(document, after, tuple(dict.fromkeys(notes)), tuple(dict.fromkeys(refused)))


def templates(document: Json) -> list[Json]:
    found: list[Json] = []

    def collect(template: Json) -> Json:
        found.append(template)
        return template

    _rewritten(document, collect)
    return found


def as_applied(document: Json) -> Json:
    """Return a live object without what the API server and controllers wrote into it."""
    metadata = {key: value for key, value in (document.get("metadata") or {}).items() if key not in _WRITTEN}
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {key: text for key, text in annotations.items() if key != _LAST_APPLIED}
    return {**{key: value for key, value in document.items() if key != "status"}, "metadata": metadata}


def unread_owners(items: Sequence[Json]) -> list[str]:
    """Return the controllers of objects that request GPUs, as `Kind/name`, that are not among these objects."""
    read = {(item.get("metadata") or {}).get("uid") for item in items}
    found: dict[str, None] = {}
    for item in items:
        owner = pod.controller(item)
        if owner is None or owner.uid in read:
            continue
        if any(map(pod.asks_for_share, templates(item))) or migrate(item) is not None:
            found[f"{owner.kind}/{owner.name}"] = None
    return [*found]


def name_of(document: Json) -> str:
    """Return `Deployment/web`."""
    metadata = document.get("metadata") or {}
    return f"{document.get('kind', '')}/{metadata.get('name') or metadata.get('generateName') or ''}"


def listed(document: Any) -> Iterator[Json]:
    """Yield an object, or those of a list. Anything else has nothing to migrate."""
    if not isinstance(document, Mapping):
        return
    items = document.get("items")
    if isinstance(items, list):
        kind = str(document.get("kind", "")).removesuffix("List")
        for item in items:
            if isinstance(item, Mapping):
                # The API server leaves out the kind of a list's items.
                yield item if "kind" in item else {"apiVersion": document.get("apiVersion", ""), "kind": kind, **item}
        return
    yield document


def _as_pod(document: Json) -> Json:
    if document.get("kind") != kubeshare.KIND:
        return document
    if not str(document.get("apiVersion", "")).startswith(f"{kubeshare.API_GROUP}/"):
        return document
    return {**document, "apiVersion": "v1", "kind": "Pod"}


def _rewritten(value: Any, rewrite: Callable[[Json], Json]) -> Any:
    """Return the value with each pod template in it rewritten."""
    if isinstance(value, Mapping):
        if _is_template(value):
            return rewrite(value)
        return {key: _rewritten(below, rewrite) for key, below in value.items()}
    return [_rewritten(below, rewrite) for below in value] if isinstance(value, list) else value


def _is_template(value: Json) -> bool:
    spec = value.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    return isinstance(containers, list) and all(isinstance(each, Mapping) for each in containers)
