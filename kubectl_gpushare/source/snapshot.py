"""Snapshot: what a verb looks at, taken once from a source; views are functions of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpushare import pod
from gpushare.gpunode import GpuNode
from gpushare.node import NodeJson
from kubectl_gpushare.source.live_usage import Usage

if TYPE_CHECKING:
    from gpushare.placement_profile import PlacementProfile


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """GPUNodes and pods at one moment.

    `pods` and `machines` (the Node objects) are None when they were not looked at or may not be read, `usage` when
    nobody was asked for it, `profile` (by what the webhook chooses) when nobody is to be placed; `storage` by kind
    (`gpushare.nodefilters.volumes`), None also where no pod in question mounts anything. `notes` says, in sentences,
    what is missing and why.
    """

    nodes: tuple[GpuNode, ...]
    pods: tuple[pod.PodJson, ...] | None = None
    notes: tuple[str, ...] = ()
    usage: Usage | None = None
    machines: tuple[NodeJson, ...] | None = None
    storage: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    profile: PlacementProfile | None = None
    events: tuple[Mapping[str, Any], ...] | None = None  # of the one thing that is looked at
