"""Remedy: a change with which a pod would fit."""

from __future__ import annotations

import dataclasses

from gpushare.placement import Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """A change, as the rest of "it would fit …", and where the pod would go then."""

    sentence: str
    placement: Placement
    gpus: str  # such as `gpu-1/0,2`
    # memory, request, gpus, a constraint's key without its prefix, a field of the pod's spec, toleration, uncordon,
    # uncordon-node, agent, surge, move, end, defrag
    kind: str
    key: str = ""  # the annotation to change, if the remedy is one
    value: str | None = None  # its new value; None: remove it
