"""Requests that gpushare does not see: a key with a typing error, with another prefix, or among the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpushare import contract, errors, pod, request

_PREFIXES = (contract.PREFIX, "gpushare/", "gpushare.com/", "gpushare.")  # ours, and usual mistakes for it
_MAX = 3


def find(manifest: pod.PodJson) -> str:
    """Return the correct forms of a pod's misspelt keys, as a sentence; empty if there are none."""
    metadata = manifest.get("metadata") or {}
    said = [*_each(metadata.get("annotations"), "annotation"), *_each(metadata.get("labels"), "label")]
    return ", and ".join(said[:_MAX])


def _each(written: object, kind: str) -> Iterator[str]:
    for key in map(str, written) if isinstance(written, Mapping) else ():
        stem = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), "")
        meant = request.meant(contract.PREFIX + stem) if stem and key != contract.SHARE_LABEL else ""
        if meant and (kind == "label" or meant != key):
            yield f"the {kind} {errors.quoted(key)} asks for nothing: write the annotation {meant}"
