"""Cordons: the temporary cordons of `defrag --apply`, as opposed to those of an admin.

A label on the GPUNode marks each cordon with its run and expiry. If a run is killed, the next one recognises its
cordons by the labels and removes them.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Mapping

from gpushare import contract
from gpushare.gpunode import CordonNote, GpuNode

# Cordons outlast the time limit of a move by this much, so that another run whose clock is ahead does not remove them.
MORE_SECONDS = 300.0
_TIME = "%Y%m%dT%H%M%SZ"


@dataclasses.dataclass(frozen=True, slots=True)
class Cordon:
    """The cordon of one GPU. `by`: the ID of the run; `until`: expiry, Unix seconds."""

    by: str
    until: float

    def formatted(self, pattern: str) -> str:
        """Return the expiry in UTC, by a pattern of `strftime`."""
        return datetime.datetime.fromtimestamp(self.until, datetime.UTC).strftime(pattern)


@dataclasses.dataclass(frozen=True, slots=True)
class CordonChange:
    """The desired state of a GPUNode: the UUIDs of cordoned GPUs.

    marks: of `defrag` runs; notes: of manual cordons. None removes one.
    """

    cordoned: frozenset[str]
    marks: Mapping[str, Cordon | None]
    notes: Mapping[str, CordonNote | None] = dataclasses.field(default_factory=dict)


def extend(node: GpuNode, uuids: frozenset[str], mark: Cordon) -> CordonChange | None:
    """Cordon these GPUs until the mark expires; None if another run has marked one. An admin's cordon gets no mark."""
    marks = read(node)
    if any(known.by != mark.by for uuid, known in marks.items() if uuid in uuids):
        return None
    ours = {uuid for uuid in uuids if uuid in marks or uuid not in node.cordoned}
    return CordonChange(node.cordoned | uuids, dict.fromkeys(ours, mark))


def release(node: GpuNode, may_open: Callable[[str, Cordon], bool]) -> CordonChange:
    """Uncordon the GPUs whose marks satisfy `may_open`."""
    opened = [uuid for uuid, mark in read(node).items() if may_open(uuid, mark)]
    return CordonChange(node.cordoned.difference(opened), dict.fromkeys(opened))


def read(node: GpuNode) -> dict[str, Cordon]:
    """Return the temporary cordons on a node, by UUID; an invalid mark counts as expired."""
    return {
        key.removeprefix(contract.DEFRAG_LABEL_PREFIX): _parse(value)
        for key, value in node.labels.items()
        if key.startswith(contract.DEFRAG_LABEL_PREFIX)
    }


def labels(marks: Mapping[str, Cordon | None]) -> dict[str, str | None]:
    """Return the labels to merge into a GPUNode, by UUID of the GPU; None removes one."""
    values = ((uuid, f"{mark.by}.{mark.formatted(_TIME)}" if mark else None) for uuid, mark in marks.items())
    return {contract.DEFRAG_LABEL_PREFIX + uuid: value for uuid, value in values}


def left_behind(node: GpuNode, *, now: float) -> dict[str, Cordon]:
    """Return the expired cordons, by UUID."""
    return {uuid: mark for uuid, mark in read(node).items() if mark.until <= now}


def sentences(nodes: Iterable[GpuNode], *, now: float, only_active: bool = False) -> list[str]:
    """Return a sentence for each temporary cordon, active or expired."""
    lines = []
    for node in nodes:
        index = {gpu.uuid: gpu.index for gpu in node.gpus}
        for uuid, mark in read(node).items():
            name = f"{node.name}/{index.get(uuid, uuid)}"
            if mark.until > now:
                until = mark.formatted("%H:%M:%SZ")
                lines.append(f"{name} is cordoned by another `defrag --apply` until {until} at the latest")
            elif not only_active:
                lines.append(
                    f"{name} was left cordoned by an interrupted `defrag --apply`: the next one "
                    f"uncordons it, or run `kubectl gpushare uncordon gpu {name}`"
                )
    return lines


def _parse(text: str) -> Cordon:
    by, _, until = text.partition(".")
    try:
        end = datetime.datetime.strptime(until, _TIME).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        end = 0.0
    return Cordon(by, end)
