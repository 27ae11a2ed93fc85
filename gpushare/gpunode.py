"""GpuNode: one node's GPUs and the allocations on them; all GpuNodes together are the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from gpushare import allocation, contract, gpu
from gpushare.cordon_note import CordonNote

_CLOSING: Final = {  # the conditions that no pod survives, whatever is free
    contract.CONDITION_DEVICES_INJECTED: contract.REASON_NOTHING_INJECTS,
    contract.CONDITION_READY: contract.REASON_AGENT_STOPPED,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A statement about the node, as Kubernetes conditions are."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition: str = ""

    @property
    def trouble(self) -> str:
        """What is the matter, as one word; empty if all is well."""
        good = "False" if self.type in contract.WELL_WHEN_FALSE else "True"
        if self.status == good:
            return ""
        if self.reason == contract.REASON_AGENT_STOPPED:
            return "NoAgent"
        if self.status not in {"True", "False"}:
            return f"{self.type}Unknown"
        return self.type if good == "False" else f"Not{self.type}"


@dataclasses.dataclass(frozen=True, slots=True)
class Resize:
    """What the agent says of a share that is to give up memory (`shrinkTo`)."""

    allocation: str  # id in the ledger
    share: int  # which of its shares, from 0
    memory_bytes: int  # the limit on each of its GPUs now; equal to `shrinkTo`: it is held to that, and stays so
    used_bytes: int  # in use on the GPU where the most is


@dataclasses.dataclass(frozen=True, slots=True)
class GpuNode:
    """Immutable; a change makes a new one. `version` is the resourceVersion that a write must still find."""

    name: str
    gpus: tuple[gpu.Gpu, ...] = ()
    allocations: tuple[allocation.Allocation, ...] = ()
    cordoned: frozenset[str] = frozenset()  # UUIDs an admin has cordoned
    config: str = ""  # name of the configuration in force
    conditions: tuple[Condition, ...] = ()
    resizes: tuple[Resize, ...] = ()  # an entry a share that is to shrink, once the agent has seen it
    version: str = ""
    problems: tuple[str, ...] = ()  # sentences about what in the object was invalid and was set aside
    unread: tuple[Mapping[str, Any], ...] = ()  # allocations that were invalid: kept as they are on every write
    created: str = ""  # when the object was made, RFC 3339
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the object
    cordon_notes: Mapping[str, CordonNote] = dataclasses.field(default_factory=dict)  # by UUID

    def condition(self, kind: str) -> Condition | None:
        """Its condition of this type, if it has one."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    @property
    def closed(self) -> str:
        """Why nothing new starts here, by what its agent says, as a clause; empty if pods do."""
        for kind, reason in _CLOSING.items():
            condition = self.condition(kind)
            if condition is not None and condition.reason == reason:
                return condition.message
        return ""

    def as_closed(self, reason: str) -> GpuNode:
        """The same with GPUs that nothing new is placed on; reason: why, as a clause."""
        return dataclasses.replace(self, gpus=tuple(dataclasses.replace(gpu, closed=reason) for gpu in self.gpus))

    def gpu_by_uuid(self) -> Mapping[str, gpu.Gpu]:
        """The node's GPUs by UUID."""
        return {gpu.uuid: gpu for gpu in self.gpus}
