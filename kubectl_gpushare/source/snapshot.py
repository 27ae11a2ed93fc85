"""The objects that a verb needs, read once from a source; views are functions of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpushare import gpu_capacity, pod, policies
from gpushare.gpunode import GpuNode
from gpushare.node import NodeJson
from gpushare.policies import TypicalOf
from kubectl_gpushare.source.live_usage import Usage

if TYPE_CHECKING:
    from gpushare.placement_profile import PlacementProfile
    from gpushare.whatif.world import World


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """GPUNodes and pods at one moment; None is unknown or not needed."""

    nodes: tuple[GpuNode, ...]
    pods: Sequence[pod.PodJson] | None = None
    notes: tuple[str, ...] = ()  # sentences about what is missing and why
    usage: Usage | None = None  # None if no agent was asked
    node_objects: Sequence[NodeJson] | None = None
    storage: Mapping[str, Sequence[Mapping[str, Any]]] | None = None  # by kind (`gpushare.nodefilters.volumes`)
    profile: PlacementProfile | None = None  # the webhook's policy and mix
    events: Sequence[Mapping[str, Any]] | None = None  # about the one object that is described

    @property
    def typical_of(self) -> TypicalOf:
        return policies.default_mix if self.profile is None else self.profile.typical_of

    @property
    def kinds(self) -> gpu_capacity.Kinds:
        """The kinds of isolation that pods which name none may get."""
        return gpu_capacity.ARBITER if self.profile is None else self.profile.kinds

    def world(self, *, claims_are_all: bool = False) -> World:
        from gpushare.whatif.world import World

        return World(
            self.nodes,
            self.node_objects,
            self.pods or (),
            self.storage,
            claims_are_all=claims_are_all,
            profile=self.profile,
        )


def message_of(event: Mapping[str, Any]) -> str:
    """Return the message of an Event of either API, without the prefix that the API server adds to a series."""
    text = str(event.get("message") or event.get("note") or "")
    return text.removeprefix("(combined from similar events): ")
