"""Cordons: GPUs that a `defrag --apply` keeps free for the time being, told from those that an admin has cordoned.

Each is marked on its GPUNode with who keeps it and until when at most. A run that is killed leaves its cordons behind;
by the marks the next one knows them, and takes them away.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping

from gpushare import contract
from gpushare.gpunode import GpuNode

_TIME = "%Y%m%dT%H%M%SZ"


@dataclasses.dataclass(frozen=True, slots=True)
class Cordon:
    """Of one GPU. `by`: what tells one run from another; `until`: seconds since 1970."""

    by: str
    until: float

    @property
    def text(self) -> str:
        """As the value of a label."""
        return f"{self.by}.{datetime.datetime.fromtimestamp(self.until, datetime.UTC).strftime(_TIME)}"

    @property
    def clock(self) -> str:
        """Its end as people read it."""
        return datetime.datetime.fromtimestamp(self.until, datetime.UTC).strftime("%H:%M:%SZ")


def of(node: GpuNode) -> dict[str, Cordon]:
    """The cordons on a node, by UUID; one that is invalid is over."""
    return {
        key.removeprefix(contract.DEFRAG_LABEL_PREFIX): _read(value)
        for key, value in node.labels.items()
        if key.startswith(contract.DEFRAG_LABEL_PREFIX)
    }


def labels(marks: Mapping[str, Cordon | None]) -> dict[str, str | None]:
    """As labels to be merged into a GPUNode; of None none."""
    return {contract.DEFRAG_LABEL_PREFIX + uuid: mark.text if mark else None for uuid, mark in marks.items()}


def left_behind(node: GpuNode, *, now: float) -> dict[str, Cordon]:
    """The cordons of GPUs that nobody keeps any more, by UUID."""
    return {uuid: mark for uuid, mark in of(node).items() if mark.until <= now}


def sentences(nodes: Iterable[GpuNode], *, now: float) -> list[str]:
    """Of each GPU that is kept, or was left behind, how it is with it."""
    lines = []
    for node in nodes:
        index = {card.uuid: card.index for card in node.gpus}
        for uuid, mark in of(node).items():
            name = f"{node.name}/{index.get(uuid, uuid)}"
            if mark.until <= now:
                lines.append(
                    f"{name} was left cordoned by a `defrag --apply` that did not come to its end: the next one "
                    f"uncordons it, as does `kubectl gpushare uncordon gpu {name}`"
                )
            else:
                lines.append(f"{name} is kept cordoned by another `defrag --apply`, until {mark.clock} at most")
    return lines


def _read(text: str) -> Cordon:
    by, _, until = text.partition(".")
    try:
        end = datetime.datetime.strptime(until, _TIME).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        end = 0.0
    return Cordon(by, end)
