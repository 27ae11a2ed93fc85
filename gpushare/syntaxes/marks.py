"""Marks: the names by which a pod in another sharer's syntax is recognised, and what translation removes from it.

A pod that keeps a foreign resource fits no node, and one that keeps a foreign annotation would be translated again. So
all of a syntax's names are removed. The webhook's matchConditions and a ValidatingAdmissionPolicy state the same marks
in CEL; a test compares them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract, pod
from gpushare.pod import PodJson

DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclasses.dataclass(frozen=True, slots=True)
class Marks:
    """The names of a syntax. A name that ends with "." or "/" stands for all names that begin with it.

    A pod asks in this syntax if a container has one of `resources`, or the pod has one of `annotations` or `labels`.
    removed: further names that mean nothing without those. schedulers: `spec.schedulerName` of pods that only this
    sharer's scheduler places. count: a resource of the whole GPU, which other software uses too; without it,
    `annotations` do not ask. ignored: a label with its value, by which users opt out.
    """

    resources: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    count: str = ""
    ignored: tuple[str, str] = ("", "")

    def found(self, manifest: PodJson) -> str:
        """Return the first name by which the pod asks in this syntax; empty if it does not."""
        label, value = self.ignored
        if contract.MIRROR_ANNOTATION in pod.annotations_of(manifest) or (
            label and labels(manifest).get(label) == value
        ):
            return ""
        amounts = [*_resources(manifest)]
        by_resource = next((name for name in amounts if _is_one_of(name, self.resources)), "")
        if by_resource or (self.count and self.count not in amounts):
            return by_resource
        keys = (*_among(pod.annotations_of(manifest), self.annotations), *_among(labels(manifest), self.labels))
        return next(iter(keys), "")

    def without(self, manifest: PodJson) -> dict[str, Any]:
        """Return the pod without these names, to be bound by the default scheduler. The rest is shared."""
        own = (*self.resources, *self.annotations, *self.labels, *self.removed, *filter(None, (self.count,)))
        metadata = {**(manifest.get("metadata") or {})}
        for field in ("annotations", "labels"):
            if metadata.get(field):
                metadata = _with_kept(metadata, field, own)
        spec = {**(manifest.get("spec") or {})}
        for listed in ("containers", "initContainers"):
            if spec.get(listed):
                spec[listed] = [_without_resources(container, own) for container in spec[listed]]
        if spec.get("schedulerName") in self.schedulers:
            spec["schedulerName"] = DEFAULT_SCHEDULER
        return {**manifest, "metadata": metadata, "spec": spec}


def labels(manifest: PodJson) -> Mapping[str, str]:
    """Return the labels, or an empty mapping."""
    return (manifest.get("metadata") or {}).get("labels") or {}


def _resources(manifest: PodJson) -> Iterator[str]:
    for container in (*pod.containers(manifest), *pod.init_containers(manifest)):
        yield from pod.resources(container)


def _among(keys: Mapping[str, str], names: tuple[str, ...]) -> Iterator[str]:
    return (key for key in keys if _is_one_of(key, names))


def _is_one_of(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or (name.endswith((".", "/")) and key.startswith(name)) for name in names)


def _without_resources(container: Mapping[str, Any], own: tuple[str, ...]) -> Mapping[str, Any]:
    declared = container.get("resources") or {}
    kept = declared
    for field in ("limits", "requests"):
        if declared.get(field):
            kept = _with_kept(kept, field, own)
    if kept == declared:
        return container
    return {
        key: kept if key == "resources" else value for key, value in container.items() if kept or key != "resources"
    }


def _with_kept(whole: Mapping[str, Any], field: str, own: tuple[str, ...]) -> dict[str, Any]:
    """Return `whole` with a mapping in it without these names, and without that mapping if nothing is left."""
    kept = {key: value for key, value in whole[field].items() if not _is_one_of(key, own)}
    return {key: kept if key == field else value for key, value in whole.items() if kept or key != field}
