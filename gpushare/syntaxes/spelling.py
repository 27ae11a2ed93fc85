"""Spelling: how a pod in another sharer's syntax is recognised, what it asks for, and gpushare's annotations for that.

The names of containers are always written out if a pod has several, because sharers differ in which container they
take. Amounts are never rounded: a value that gpushare cannot express raises an error that says what to write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract, errors, pod, quantity
from gpushare.pod import PodJson

DEFAULT_SCHEDULER: Final = "default-scheduler"
_MIB = 1 << 20
_MAX_MIB = (1 << 20) - 1  # no GPU has 1 TiB, so a larger number is in bytes

Shares = dict[tuple[str, ...], "SpelledShare"]  # by the names of the containers that use a share together


@dataclasses.dataclass(frozen=True, slots=True)
class Marks:
    """The names of a syntax: those by which its pods are recognised, and what translation removes from them.

    A pod that keeps a foreign resource fits no node, and one that keeps a foreign annotation would be translated again.
    So a syntax's resources and annotations are removed. Labels stay, because a controller whose selector names one
    would lose its pods and create more without end; labels that ask count only until gpushare's annotations ask. The
    webhook's matchConditions and a ValidatingAdmissionPolicy state the same marks in CEL; a test compares them.

    A name that ends with "." or "/" stands for all names that begin with it.

    A pod asks in this syntax if a container has one of `resources`, or the pod has one of `annotations`, or one of
    `labels` and no share in gpushare's annotations.
    removed: further annotations that mean nothing without those. schedulers: `spec.schedulerName` of pods that only
    this sharer's scheduler places. count: a resource of the whole GPU, which other software uses too; without it,
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
        amounts = [name for container in pod.all_containers(manifest) for name in pod.resources(container)]
        by_resource = next((name for name in amounts if _is_one_of(name, self.resources)), "")
        if by_resource or (self.count and self.count not in amounts):
            return by_resource
        asking = {} if pod.asks_for_share(manifest) else labels(manifest)
        keys = (*_among(pod.annotations_of(manifest), self.annotations), *_among(asking, self.labels))
        return next(iter(keys), "")

    def without(self, manifest: PodJson) -> dict[str, Any]:
        """Return the pod without these resources and annotations, for the default scheduler. The rest is shared."""
        own = (*self.resources, *filter(None, (self.count,)))
        metadata = {**(manifest.get("metadata") or {})}
        if metadata.get("annotations"):
            metadata = _with_kept(metadata, "annotations", (*self.annotations, *self.removed))
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
    return {key: kept if key == "resources" else own for key, own in container.items() if kept or key != "resources"}


def _with_kept(whole: Mapping[str, Any], field: str, own: tuple[str, ...]) -> dict[str, Any]:
    """Return `whole` with a mapping in it without these names, and without that mapping if nothing is left."""
    kept = {key: value for key, value in whole[field].items() if not _is_one_of(key, own)}
    return {key: kept if key == field else value for key, value in whole.items() if kept or key != field}


@dataclasses.dataclass(frozen=True, slots=True)
class SpelledShare:
    """A share on each of `gpus` GPUs. request, limit: percent, None for the default. memory's: as annotations are."""

    request: int | None = None
    limit: int | None = None
    memory: str = ""
    gpus: int = 1
    memory_limit: str = ""

    def annotations(self) -> Iterator[tuple[str, str]]:
        """Yield gpushare's keys and values."""
        if self.request is not None:
            yield contract.REQUEST, quantity.format_compute(self.request)
        if self.limit is not None:
            yield contract.LIMIT, quantity.format_compute(self.limit)
        if self.memory:
            yield contract.MEMORY, self.memory
        if self.memory_limit:
            yield contract.MEMORY_LIMIT, self.memory_limit
        if self.gpus != 1:
            yield contract.GPUS, str(self.gpus)


WHOLE = SpelledShare(request=100)


@dataclasses.dataclass(frozen=True, slots=True)
class Spelling:
    """A pod's shares by the containers that use each, annotations of the whole pod, and notes on useless requests."""

    shares: Mapping[tuple[str, ...], SpelledShare]
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def spelled(self, manifest: PodJson) -> dict[str, str]:
        """Return gpushare's annotations for this pod, in a stable order."""
        spelled: dict[str, str] = {}
        if len(self.shares) == 1:
            ((containers, amounts),) = self.shares.items()
            spelled |= dict(amounts.annotations())
            if len(pod.container_names(manifest)) > 1:
                spelled[contract.CONTAINER] = ",".join(containers)
        else:
            for containers, amounts in self.shares.items():
                for name in containers:
                    spelled |= {f"{key}.{name}": value for key, value in amounts.annotations()}
        return spelled | dict(self.annotations)


def name_of(container: Mapping[str, Any]) -> str:
    """Return the container's name, or an empty string."""
    return str(container.get("name") or "")


def written(container: Mapping[str, Any], resource: str) -> str:
    """Return the amount in the container's limits, else in its requests; empty if there is none."""
    declared = container.get("resources") or {}
    for side in ("limits", "requests"):
        amount = (declared.get(side) or {}).get(resource)
        if amount is not None:
            return str(amount)
    return ""


def whole_number(container: Mapping[str, Any], resource: str) -> int | None:
    """Return the amount of a resource, None if there is none. Raises RequestError if it is not a whole number."""
    text = written(container, resource)
    if not text:
        return None
    try:
        value = quantity.parse(text)
    except errors.QuantityError:
        value = None
    if value is None or value.denominator != 1:
        raise wrong(container, resource, "is not a whole number")
    return int(value)


def percent(container: Mapping[str, Any], resource: str) -> int | None:
    """Return percent of a GPU; None for 0, which other sharers take for unset. Raises RequestError."""
    value = whole_number(container, resource)
    if value is not None and value > 100:
        raise wrong(container, resource, "is more than 100 percent of a GPU")
    return value or None


def mebibytes(container: Mapping[str, Any], resource: str) -> str:
    """Return memory that is written as a number of MiB; empty for 0, which means unset. Raises RequestError."""
    value = whole_number(container, resource)
    if value is not None and (mistake := bytes_by_mistake(value)):
        raise wrong(container, resource, mistake)
    return quantity.format_exactly(value * _MIB) if value else ""


def bytes_by_mistake(mebibytes: int) -> str:
    """Return the remedy for a number of MiB that no GPU has; empty for others."""
    return f"is a number of MiB: write {mebibytes // _MIB} if it is meant in bytes" if mebibytes > _MAX_MIB else ""


def without_effect(key: str) -> str:
    """Return the note on a key of the other sharer that means nothing there either, such as a misspelled one."""
    return f"{errors.shortened(key, longest=128)} has no effect in gpushare"


def wrong(container: Mapping[str, Any], resource: str, remedy: str) -> errors.RequestError:
    """Return the error for a container's resource: `KEY "VALUE" of container "NAME" REMEDY`."""
    text = written(container, resource)
    if text[:-1].isdecimal():  # the API server stores 3000 as 3k
        text = text.replace("k", "000")
    return errors.RequestError(resource, text, f"of container {errors.quoted(name_of(container))} {remedy}")
