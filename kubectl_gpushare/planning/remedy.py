"""Remedy: what would have to be different for a pod to fit."""

from __future__ import annotations

import dataclasses

from gpushare.placement import Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """What would have to be different, as the rest of "it would fit …", and where the pod would go then."""

    sentence: str
    placement: Placement
    gpus: str  # where, in a word
    # memory, request, gpus, a constraint's key without its prefix, a field of the pod's spec, toleration, uncordon,
    # uncordon-node, agent, move
    kind: str
    key: str = ""  # the annotation that would have to be written otherwise, if it is one
    value: str | None = None  # how; None: left out
