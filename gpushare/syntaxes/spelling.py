"""Spelling: the shares that a pod asks for in another sharer's syntax, and gpushare's annotations for them.

The names of containers are always written out if a pod has several, because sharers differ in which container they
take. Amounts are never rounded: a value that gpushare cannot express raises an error that says what to write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import contract, errors, pod, quantity
from gpushare.pod import PodJson

_MIB = 1 << 20
_MAX_MIB = (1 << 20) - 1  # no GPU has 1 TiB, so a larger number is in bytes


Shares = dict[tuple[str, ...], "SpelledShare"]  # by the names of the containers that use a share together


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
